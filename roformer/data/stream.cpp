#include "roformer/data/stream.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace roformer {
namespace {

class PrefetchStream final : public BatchStream {
 public:
  PrefetchStream(std::unique_ptr<BatchStream> source, int depth)
      : source_(std::move(source)), depth_(static_cast<size_t>(depth)), state_(source_->state()) {
    TORCH_CHECK(depth >= 1, "prefetch: depth must be at least 1");
  }
  ~PrefetchStream() override { stop(); }

  std::optional<Batch> next() override {
    // Started only when needed, so restore() right after the start costs nothing.
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [this] { return !queue_.empty(); });
    // The end and an error stay in the queue: every later call sees them again.
    if (queue_.front().error) std::rethrow_exception(queue_.front().error);
    if (!queue_.front().batch) return std::nullopt;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    state_ = item.state;
    lock.unlock();
    taken_.notify_one();
    return std::move(item.batch);
  }

  StreamState state() const override { return state_; }

  void restore(StreamState state) override {
    stop();
    queue_.clear();
    source_->restore(state);
    state_ = source_->state();
  }

 private:
  struct Item {
    std::optional<Batch> batch;
    StreamState state;
    std::exception_ptr error;
  };

  void work() {
    for (bool more = true; more;) {
      Item item;
      try {
        item.batch = source_->next();
        item.state = source_->state();
      } catch (...) {
        item.error = std::current_exception();
      }
      more = item.batch && !item.error;
      std::unique_lock lock(mutex_);
      taken_.wait(lock, [this] { return stopping_ || queue_.size() < depth_; });
      if (stopping_) return;
      queue_.push_back(std::move(item));
      lock.unlock();
      filled_.notify_one();
    }
  }

  void stop() {
    if (!worker_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    taken_.notify_one();
    worker_.join();
    stopping_ = false;
  }

  std::unique_ptr<BatchStream> source_;
  size_t depth_;
  StreamState state_;
  std::mutex mutex_;
  std::condition_variable filled_, taken_;
  std::deque<Item> queue_;
  bool stopping_ = false;
  std::thread worker_;
};

}  // namespace

std::unique_ptr<BatchStream> prefetch(std::unique_ptr<BatchStream> source, int depth) {
  return std::make_unique<PrefetchStream>(std::move(source), depth);
}

}  // namespace roformer
