#include "roformer/train/schedule.h"

#include <cmath>
#include <numbers>

#include "tests/catch.h"

using namespace roformer;

TEST_CASE("warm-up reaches the peak at update `warmup`, counted in updates") {
  const ScheduleOptions constant = ConstantOptions{50};
  CHECK(schedule_factor(constant, 1, 600) == Approx(1.0 / 50));
  CHECK(schedule_factor(constant, 49, 600) == Approx(49.0 / 50));
  CHECK(schedule_factor(constant, 50, 600) == 1.0);
  CHECK(schedule_factor(constant, 600, 600) == 1.0);
  CHECK(schedule_factor(ConstantOptions{0}, 1, 600) == 1.0);
  // 400 micro-batches, 4 to an update: 100 updates; 10 % warm-up peaks at update 10.
  CHECK(schedule_factor(ConstantOptions{0.1}, 9, 100) == Approx(0.9));
  CHECK(schedule_factor(ConstantOptions{0.1}, 10, 100) == 1.0);
}

TEST_CASE("decays equal their formulas, without a jump after warm-up") {
  // Hugging Face's linear schedule at its step i = n - 1: (T - i) / (T - w).
  for (const int n : {1, 2, 50, 99, 100}) {
    CHECK(schedule_factor(LinearOptions{0}, n, 100) == Approx((100.0 - (n - 1)) / 100.0));
  }
  CHECK(schedule_factor(LinearOptions{20}, 20, 100) == 1.0);
  CHECK(schedule_factor(LinearOptions{20}, 21, 100) == 1.0);
  CHECK(schedule_factor(LinearOptions{20}, 61, 100) == Approx(0.5));
  CHECK(schedule_factor(LinearOptions{20}, 100, 100) == Approx(1.0 / 80));

  CHECK(schedule_factor(CosineOptions{20}, 21, 100) == 1.0);
  CHECK(schedule_factor(CosineOptions{20}, 61, 100) == Approx(0.5));
  CHECK(schedule_factor(CosineOptions{20}, 41, 100) == Approx((1 + std::cos(std::numbers::pi / 4)) / 2));

  CHECK(schedule_factor(InverseSqrtOptions{4000}, 4000, 100000) == 1.0);
  CHECK(schedule_factor(InverseSqrtOptions{4000}, 16000, 100000) == Approx(0.5));
  CHECK(schedule_factor(InverseSqrtOptions{0}, 25, 100) == Approx(0.2));
}

TEST_CASE("warm-up longer than the run just rises") {
  for (const ScheduleOptions& options :
       {ScheduleOptions(LinearOptions{200}), ScheduleOptions(CosineOptions{200}), ScheduleOptions(ConstantOptions{200})}) {
    CHECK(schedule_factor(options, 100, 100) == Approx(0.5));
  }
}
