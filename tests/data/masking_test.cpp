#include "roformer/data/masking.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "tests/catch.h"
#include "tests/data/text_support.h"

namespace roformer {
namespace {

const MaskTokens& byte_tokens() {
  static const MaskTokens tokens(*make_tokenizer(BytesOptions{}));
  return tokens;
}

struct MaskedWindow {
  std::vector<int64_t> before, after, positions, labels;
};

MaskedWindow mask_bytes(const std::vector<int64_t>& ids, const MaskingOptions& options, uint64_t key) {
  MaskedWindow window{ids, ids, {}, {}};
  mask_window(window.after, options, byte_tokens(), Random(key), window.positions, window.labels);
  return window;
}

/// [CLS] text [SEP] [CLS] text [SEP] [PAD] ... with `ordinary` bytes of text.
std::vector<int64_t> wrapped_text(int64_t ordinary, int64_t length) {
  std::vector<int64_t> ids = {258};
  for (int64_t i = 0; i < ordinary; ++i) {
    if (i == ordinary / 2) ids.insert(ids.end(), {259, 258});
    ids.push_back('a' + i % 26);
  }
  ids.push_back(259);
  while (static_cast<int64_t>(ids.size()) < length) ids.push_back(256);
  return ids;
}

}  // namespace

TEST_CASE("masking: 12 % masked, 1.5 % random, 1.5 % kept, and nothing else changes") {
  // No text byte equals a random one, so that the three kinds can be told apart: 255 stands nowhere else, and
  // random ids hit it once in 261 times.
  const std::vector<int64_t> ids(500, 255);
  int64_t masked = 0, random = 0, kept = 0, total = 0, random_specials = 0;
  std::map<int64_t, int64_t> values;
  for (uint64_t key = 0; key < 8000; ++key) {
    const MaskedWindow w = mask_bytes(ids, {}, key);
    REQUIRE(w.positions.size() == w.labels.size());
    REQUIRE(std::is_sorted(w.positions.begin(), w.positions.end()));
    size_t next = 0;
    for (int64_t i = 0; i < 500; ++i, ++total) {
      const int64_t id = w.after[static_cast<size_t>(i)];
      if (next == w.positions.size() || w.positions[next] != i) {
        REQUIRE(id == 255);
        continue;
      }
      REQUIRE(w.labels[next++] == 255);
      if (id == 260) {
        ++masked;
      } else if (id == 255) {
        ++kept;
      } else {
        ++random;
        ++values[id];
        random_specials += id >= 256;
      }
    }
    REQUIRE(next == w.positions.size());
  }
  // 4e6 tokens; sd of the rates 1.6e-4, 6e-5, 6e-5. A random id is 255 or [MASK] in 2 of 261 cases.
  const auto rate = [&](int64_t count) { return static_cast<double>(count) / static_cast<double>(total); };
  CHECK(rate(masked) == Approx(0.12 + 0.015 / 261).margin(0.001));
  CHECK(rate(random) == Approx(0.015 * 259 / 261).margin(0.0005));
  CHECK(rate(kept) == Approx(0.015 + 0.015 / 261).margin(0.0005));
  CHECK(rate(masked + random + kept) == Approx(0.15).margin(0.001));
  // The whole vocabulary, [PAD], [UNK], [CLS] and [SEP] included.
  CHECK(values.size() == 259);
  CHECK(static_cast<double>(random_specials) / static_cast<double>(random) ==
        Approx(4.0 / 259).margin(0.003));
}

TEST_CASE("masking: special tokens and padding are never chosen") {
  const std::vector<int64_t> ids = wrapped_text(60, 128);
  for (const int64_t span : {1, 5}) {
    std::vector<int64_t> chosen(128);
    for (uint64_t key = 0; key < 3000; ++key) {
      MaskingOptions options;
      options.span = span;
      const MaskedWindow w = mask_bytes(ids, options, key);
      for (size_t k = 0; k < w.positions.size(); ++k) {
        const auto i = static_cast<size_t>(w.positions[k]);
        ++chosen[i];
        REQUIRE(w.labels[k] == ids[i]);
      }
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] >= 256) REQUIRE(w.after[i] == ids[i]);
      }
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      INFO("span " << span << ", position " << i);
      if (ids[i] >= 256) {
        CHECK(chosen[i] == 0);
      } else if (span == 1) {
        CHECK(static_cast<double>(chosen[i]) / 3000 == Approx(0.15).margin(0.033));  // 5 sd
      } else {
        CHECK(chosen[i] > 0);
      }
    }
  }
}

TEST_CASE("masking: the key decides, nothing else") {
  const std::vector<int64_t> ids = wrapped_text(100, 128);
  const MaskedWindow a = mask_bytes(ids, {}, 5), b = mask_bytes(ids, {}, 5), c = mask_bytes(ids, {}, 6);
  CHECK(a.after == b.after);
  CHECK(a.positions == b.positions);
  CHECK(a.positions != c.positions);
  // Appends.
  std::vector<int64_t> copy = ids, positions = {1}, labels = {2};
  mask_window(copy, {}, byte_tokens(), Random(5), positions, labels);
  CHECK(positions.size() == a.positions.size() + 1);
  CHECK(labels.size() == positions.size());
}

TEST_CASE("masking: a window with any ordinary token has a target") {
  MaskingOptions rare;
  rare.mask = 1e-9;
  for (const int64_t span : {1, 3}) {
    rare.span = span;
    std::vector<int64_t> seen(4);
    for (uint64_t key = 0; key < 200; ++key) {
      const MaskedWindow w = mask_bytes({258, 'a', 'b', 259}, rare, key);
      REQUIRE(w.positions.size() == 1);
      ++seen[static_cast<size_t>(w.positions[0])];
    }
    CHECK(seen[1] > 50);
    CHECK(seen[2] > 50);
    CHECK(mask_bytes({258, 259, 256, 256}, rare, 1).positions.empty());
  }
}

TEST_CASE("masking: everything can be masked") {
  MaskingOptions all;
  all.mask = 1.0;
  all.replace = 1.0;
  all.random = 0.0;
  for (const int64_t span : {1, 4}) {
    all.span = span;
    const MaskedWindow w = mask_bytes(wrapped_text(60, 128), all, 9);
    CHECK(w.positions.size() == 60);
    CHECK(std::count(w.after.begin(), w.after.end(), 260) == 60);
  }
}

TEST_CASE("masking: spans have SpanBERT's lengths, its rate, and one fate each") {
  MaskingOptions options;
  options.span = 5;
  options.mask = 0.01;  // so few that spans hardly ever meet
  options.replace = 0.5;
  options.random = 0.0;
  const std::vector<int64_t> ids(4000, 'x');
  std::map<int64_t, double> lengths;
  double spans = 0, sum = 0, targets = 0;
  int64_t replaced = 0, mixed = 0;
  for (uint64_t key = 0; key < 2000; ++key) {
    const MaskedWindow w = mask_bytes(ids, options, key);
    targets += static_cast<double>(w.positions.size());
    for (size_t i = 0; i < w.positions.size();) {
      size_t end = i + 1;
      while (end < w.positions.size() && w.positions[end] == w.positions[end - 1] + 1) ++end;
      const bool first = w.after[static_cast<size_t>(w.positions[i])] == 260;
      for (size_t k = i; k < end; ++k)
        mixed += (w.after[static_cast<size_t>(w.positions[k])] == 260) != first;
      replaced += first;
      if (!first) REQUIRE(w.after[static_cast<size_t>(w.positions[i])] == 'x');  // random is 0
      ++lengths[static_cast<int64_t>(end - i)];
      ++spans;
      sum += static_cast<double>(end - i);
      i = end;
    }
  }
  CHECK(targets / (2000.0 * 4000.0) == Approx(0.01).epsilon(1e-9));  // the budget is a whole number here
  // Geo(0.2) on 1 .. 10: mean 3.797, P(1) 0.224, P(2) 0.179. Each window's last span is cut by the budget and
  // a few touch, hence the tolerances.
  CHECK(sum / spans == Approx(3.797).epsilon(0.06));
  CHECK(lengths[1] / spans == Approx(0.224).margin(0.03));
  CHECK(lengths[2] / spans == Approx(0.179).margin(0.03));
  CHECK(lengths[10] / spans == Approx(0.030).margin(0.015));
  CHECK(static_cast<double>(replaced) / spans == Approx(0.5).margin(0.03));
  CHECK(static_cast<double>(mixed) / spans < 0.05);  // neighbours that touch
}

TEST_CASE("masking: rate of spans in short windows") {
  MaskingOptions options;
  options.span = 3;
  double targets = 0;
  for (uint64_t key = 0; key < 20'000; ++key) {
    targets += static_cast<double>(mask_bytes(wrapped_text(50, 54), options, key).positions.size());
  }
  CHECK(targets / (20'000.0 * 50) == Approx(0.15).epsilon(0.01));  // 7.5 a window, by stochastic rounding
}

TEST_CASE("masking: options that exceed 1 are refused") {
  const auto read_masking = [](const char* yaml) {
    MaskingOptions options;
    read(parse_config(yaml, "test.yaml"), options, "task");
  };
  CHECK_NOTHROW(read_masking("{replace: 0.9, random: 0.1}"));
  CHECK_THROWS_AS(read_masking("{replace: 0.9, random: 0.2}"), Error);
  CHECK_THROWS_AS(read_masking("{mask: 0}"), Error);
  CHECK_THROWS_AS(read_masking("{mask: 1.5}"), Error);
  CHECK_THROWS_AS(read_masking("{span: 0}"), Error);
}

namespace {

/// Words of one to four bytes: lower case begins a word, digits go on with it.
class WordBytes : public test::CodePointTokenizer {
 public:
  int64_t vocab_size() const override { return 128; }
  bool starts_word(int32_t id) const override { return id < '0' || id > '9'; }
};

}  // namespace

TEST_CASE("whole words are masked together, with a decision for each piece") {
  const MaskTokens tokens(WordBytes{});
  std::vector<int64_t> ids = {1};  // a special token first
  for (int word = 0; word < 40; ++word) {
    ids.push_back('a' + word % 26);
    for (int piece = 0; piece < word % 4; ++piece) ids.push_back('0' + piece);
  }
  int64_t chosen = 0, total = 0, split_words = 0, mixed = 0;
  for (uint64_t key = 0; key < 4000; ++key) {
    std::vector<int64_t> after = ids, positions, labels;
    MaskingOptions options;
    options.whole_words = true;
    mask_window(after, options, tokens, Random(key), positions, labels);
    std::vector<char> is_chosen(ids.size(), 0);
    for (const int64_t i : positions) is_chosen[static_cast<size_t>(i)] = 1;
    REQUIRE_FALSE(is_chosen[0]);
    for (size_t i = 2; i < ids.size(); ++i) {
      const bool goes_on = ids[i] >= '0' && ids[i] <= '9';
      if (goes_on && is_chosen[i] != is_chosen[i - 1]) ++split_words;
      if (goes_on && is_chosen[i] && (after[i] == tokens.mask) != (after[i - 1] == tokens.mask)) ++mixed;
    }
    chosen += static_cast<int64_t>(positions.size());
    total += static_cast<int64_t>(ids.size()) - 1;
  }
  CHECK(split_words == 0);
  CHECK(mixed > 0);
  CHECK(static_cast<double>(chosen) / static_cast<double>(total) == Approx(0.15).margin(0.005));
}

TEST_CASE("a word whose beginning is in the window before is still one word") {
  const MaskTokens tokens(WordBytes{});
  for (uint64_t key = 0; key < 200; ++key) {
    std::vector<int64_t> ids = {'1', '2', '3', 'a'}, positions, labels;
    MaskingOptions options;
    options.whole_words = true;
    mask_window(ids, options, tokens, Random(key), positions, labels);
    const auto in_word = std::count_if(positions.begin(), positions.end(), [](int64_t i) { return i < 3; });
    CHECK((in_word == 0 || in_word == 3));
    CHECK_FALSE(positions.empty());
  }
}

TEST_CASE("whole words and spans exclude each other") {
  MaskingOptions options;
  options.whole_words = true;
  options.span = 3;
  CHECK_THROWS_WITH(validate(options), Catch::Contains("whole_words"));
}

}  // namespace roformer
