// This project's side of the benchmark and of the checks against Python packages. Reads one JSON request per
// line and answers each with one line: {"do": "rope", "count": 10} -> {"cpu": s, "wall": s}. peer.py answers
// the same requests; bench.py asks both in turn.

#include <time.h>

#include <fmt/ranges.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "roformer/core/error.h"
#include "roformer/hf/folder.h"
#include "roformer/nn/feature_map.h"
#include "roformer/nn/linear_attention.h"
#include "roformer/nn/rotary.h"
#include "roformer/text/tokenizer.h"
#include "roformer/train/checkpoint.h"
#include "roformer/train/optimizer.h"
#include "roformer/train/precision.h"

namespace {

using Json = nlohmann::json;

double process_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Json measure(int64_t count, const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  const double cpu = process_seconds();
  for (int64_t i = 0; i < count; ++i) work();
  const double cpu_after = process_seconds();
  return {{"cpu", cpu_after - cpu},
          {"wall", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()}};
}

std::map<std::string, torch::Tensor> load_all(const std::string& path) {
  const roformer::SafetensorsFile file(path);
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& entry : file.entries()) tensors[entry.name] = file.tensor(entry.name);
  return tensors;
}

/// Rotation of q and k, forward and backward.
class Rope {
 public:
  explicit Rope(const std::string& path) {
    std::map<std::string, torch::Tensor> given = load_all(path);
    for (const char* name : {"q", "k"}) inputs_.push_back(given.at(name).requires_grad_());
    for (const char* name : {"grad_q", "grad_k"}) grads_.push_back(given.at(name));
    const torch::Tensor angles = roformer::rotary_angles(inputs_[0].size(2), inputs_[0].size(3));
    table_ = torch::stack({angles.cos(), angles.sin()}, -1).to(torch::kFloat32).unsqueeze(0);
  }

  void run() {
    for (torch::Tensor& input : inputs_) input.mutable_grad().reset();
    outputs_.clear();
    for (const torch::Tensor& input : inputs_) {
      outputs_.push_back(roformer::apply_rotary(input, table_, roformer::RotaryLayout::interleaved));
    }
    torch::autograd::backward(outputs_, grads_);
  }

  /// The least that it could cost: each of the four results written once.
  void copy() {
    torch::NoGradGuard no_grad;
    if (copies_.empty()) {
      for (int i = 0; i < 4; ++i) copies_.push_back(torch::empty_like(inputs_[0]));
    }
    for (int i = 0; i < 2; ++i) {
      copies_[i].copy_(inputs_[i]);
      copies_[i + 2].copy_(grads_[i]);
    }
  }

  void save(const std::string& path) const {
    roformer::save_safetensors(path, {{"q", outputs_[0].detach()},
                                      {"k", outputs_[1].detach()},
                                      {"grad_q", inputs_[0].grad()},
                                      {"grad_k", inputs_[1].grad()}});
  }

 private:
  std::vector<torch::Tensor> inputs_, grads_, outputs_, copies_;
  torch::Tensor table_;
};

/// Causal linear attention by performer-pytorch's ReLU features, forward and backward.
class LinearAttention {
 public:
  explicit LinearAttention(const std::string& path) {
    std::map<std::string, torch::Tensor> given = load_all(path);
    for (const char* name : {"q", "k", "v"}) inputs_.push_back(given.at(name).requires_grad_());
    grad_ = given.at("grad_out");
    const torch::Tensor projection = given.at("projection");
    roformer::FavorFeatures favor{.features = projection.size(0), .kernel = roformer::FavorKernel::relu};
    favor.epsilon = 1e-3;
    features_ = roformer::make(favor, projection.size(1), 0);
    features_->named_buffers()["projection"].copy_(projection);
  }

  void run() {
    for (torch::Tensor& input : inputs_) input.mutable_grad().reset();
    out_.reset();
    const torch::Tensor phi_q = features_->query(inputs_[0]);
    const torch::Tensor phi_k = features_->key(inputs_[1], {}, /*causal=*/true);
    out_ = roformer::linear_attention_causal({phi_q, phi_k, {}, {}, inputs_[2]});
    out_.backward(grad_);
  }

  void save(const std::string& path) const {
    roformer::save_safetensors(path, {{"out", out_.detach()},
                                      {"grad_q", inputs_[0].grad()},
                                      {"grad_k", inputs_[1].grad()},
                                      {"grad_v", inputs_[2].grad()}});
  }

 private:
  std::vector<torch::Tensor> inputs_;
  torch::Tensor grad_, out_;
  roformer::FeatureMap features_{nullptr};
};

/// Resident memory of this process in bytes: VmRSS, or VmHWM for the most since the start.
int64_t resident(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return 1024 * std::stoll(line.substr(field.size() + 1));
  }
  roformer::fail("/proc/self/status has no {}", field);
}

roformer::EncoderOptions encoder_options(const Json& request) {
  roformer::EncoderOptions options;
  options.dim = request.at("dim");
  options.layers = request.at("layers");
  options.heads = request.at("heads");
  options.ffn = request.at("ffn");
  options.dropout = request.at("dropout");
  options.vocab_size = request.at("vocab");
  if (request.at("family") == "bert") {
    options.positions = {roformer::LearnedOptions{.max_length = request.at("max_length")}};
  }
  return options;
}

/// Training of a masked language model from a Hugging Face file of weights, on given batches in turn.
class Training {
 public:
  explicit Training(const Json& request)
      : model_(encoder_options(request)), lr_(request.at("lr")), optimizer_(adamw(request), *model_) {
    roformer::load_hf_mlm(*model_, roformer::SafetensorsFile(request.at("weights").get<std::string>()));
    const std::map<std::string, torch::Tensor> given = load_all(request.at("batches"));
    for (int64_t i = 0; i < given.at("tokens").size(0); ++i) {
      roformer::Batch batch;
      batch.tokens = given.at("tokens")[i];
      const torch::Tensor labels = given.at("labels")[i].flatten();
      batch.targets = (labels != -100).nonzero().flatten();
      batch.labels = labels.index_select(0, batch.targets);
      if (given.contains("keep")) batch.keep = given.at("keep")[i].to(torch::kBool);
      batches_.push_back(batch);
    }
    model_->train();
  }

  torch::Tensor loss(const roformer::Batch& batch) {
    const torch::Tensor logits = model_->forward(batch);
    return at::cross_entropy_loss(logits, batch.labels, {}, at::Reduction::Sum) /
           static_cast<double>(batch.target_count());
  }

  torch::Tensor step() {
    optimizer_.zero_grad();
    const torch::Tensor mean = loss(batches_[next_++ % batches_.size()]);
    mean.backward();
    optimizer_.step(lr_);
    return mean.detach();
  }

  /// Of the first batch, without dropout and without training.
  double first_loss() {
    torch::NoGradGuard no_grad;
    model_->eval();
    const double value = loss(batches_[0]).item<double>();
    model_->train();
    return value;
  }

 private:
  static roformer::AdamWOptions adamw(const Json& request) {
    roformer::AdamWOptions options;
    options.lr = request.at("lr");
    return options;
  }

  roformer::MaskedLm model_;
  double lr_;
  roformer::Optimizer optimizer_;
  std::vector<roformer::Batch> batches_;
  size_t next_ = 0;
};

/// Lines of text to ids, without [CLS] and [SEP]; every line's ids are kept until the next run.
class Tokenizing {
 public:
  Tokenizing(const std::string& vocabulary, const std::string& text) {
    roformer::WordPieceOptions options;
    options.vocab = vocabulary;
    tokenizer_ = roformer::make_tokenizer(options);
    std::ifstream in(text, std::ios::binary);
    for (std::string line; std::getline(in, line);) lines_.push_back(line);
  }

  void run() {
    ids_.clear();
    for (const std::string& line : lines_) tokenizer_->encode(line, ids_.emplace_back());
  }

  void save(const std::string& path) const {
    std::ofstream out(path, std::ios::binary);
    for (const std::vector<int32_t>& ids : ids_) out << fmt::format("{}\n", fmt::join(ids, " "));
  }

 private:
  std::unique_ptr<roformer::Tokenizer> tokenizer_;
  std::vector<std::string> lines_;
  std::vector<std::vector<int32_t>> ids_;
};

struct Session {
  std::unique_ptr<Rope> rope;
  std::unique_ptr<LinearAttention> linear;
  std::unique_ptr<Tokenizing> tokenizing;
  std::unique_ptr<Training> training;
  std::vector<char> from, to;
  torch::Tensor a, b, c;

  Json answer(const Json& request) {
    const std::string what = request.at("do");
    const int64_t count = request.value("count", int64_t{1});
    if (what == "setup") {
      at::set_num_threads(request.at("threads"));
      at::globalContext().setFloat32MatmulPrecision(request.at("matmul").get<std::string>());
      torch::manual_seed(1);
      return {{"threads", at::get_num_threads()}};
    }
    if (what == "rope_load") {
      rope = std::make_unique<Rope>(request.at("inputs"));
      return Json::object();
    }
    if (what == "rope_save") {
      rope->run();
      rope->save(request.at("path"));
      return Json::object();
    }
    if (what == "rope") return measure(count, [&] { rope->run(); });
    if (what == "copy") return measure(count, [&] { rope->copy(); });
    if (what == "linear_load") {
      linear.reset();
      linear = std::make_unique<LinearAttention>(request.at("inputs"));
      return Json::object();
    }
    if (what == "linear_save") {
      linear->run();
      linear->save(request.at("path"));
      return Json::object();
    }
    if (what == "linear") return measure(count, [&] { linear->run(); });
    if (what == "memory") return {{"now", resident("VmRSS")}, {"peak", resident("VmHWM")}};
    if (what == "step_load") {
      training = std::make_unique<Training>(request);
      return Json::object();
    }
    if (what == "loss") return {{"loss", training->first_loss()}};
    if (what == "losses") {
      Json losses = Json::array();
      for (int64_t i = 0; i < count; ++i) losses.push_back(training->step().item<double>());
      return {{"losses", losses}};
    }
    if (what == "step") return measure(count, [&] { training->step(); });
    if (what == "tokenize_load") {
      tokenizing = std::make_unique<Tokenizing>(request.at("vocab"), request.at("text"));
      return Json::object();
    }
    if (what == "tokenize_save") {
      tokenizing->run();
      tokenizing->save(request.at("path"));
      return Json::object();
    }
    if (what == "tokenize") return measure(count, [&] { tokenizing->run(); });
    if (what == "memcpy") {
      const size_t bytes = request.at("bytes");
      from.resize(bytes, 1);
      to.resize(bytes, 2);
      return measure(count, [&] {
        std::memcpy(to.data(), from.data(), bytes);
        asm volatile("" : : "r"(to.data()) : "memory");  // or the compiler drops all but the last
      });
    }
    if (what == "gemm") {
      const int64_t size = request.at("size");
      if (!a.defined() || a.size(0) != size) {
        a = torch::randn({size, size});
        b = torch::randn({size, size});
        c = torch::empty({size, size});
      }
      return measure(count, [&] { at::mm_out(c, a, b); });
    }
    roformer::fail("unknown request '{}'", what);
  }
};

}  // namespace

int main() {
  Session session;
  for (std::string line; std::getline(std::cin, line);) {
    Json answer;
    try {
      answer = session.answer(Json::parse(line));
    } catch (const c10::Error& error) {
      answer = {{"error", error.what_without_backtrace()}};
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << std::endl;
  }
}
