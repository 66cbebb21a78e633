#include "roformer/report/tables.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "roformer/core/files.h"
#include "tests/catch.h"
#include "tests/support.h"

using roformer::Table;

TEST_CASE("Markdown tables are aligned and escaped") {
  const Table table = {
      "Losses", {"arm", "loss"}, {{"RoFormer", "1.98 ± 0.03"}, {"a|b\n", "–"}, {"中文", "12.1"}}, {"n = 2"}};
  CHECK(roformer::to_markdown(table) ==
        "### Losses\n"
        "\n"
        "| arm      |        loss |\n"
        "| -------- | ----------: |\n"
        "| RoFormer | 1.98 ± 0.03 |\n"
        "| a\\|b     |           – |\n"
        "| 中文     |        12.1 |\n"
        "\n"
        "n = 2\n");
  CHECK(roformer::to_markdown({"", {"x"}, {}, {}}) == "| x   |\n| --- |\n");
  CHECK_THROWS_AS(roformer::to_markdown({"", {"x"}, {{"1", "2"}}, {}}), std::logic_error);
}

TEST_CASE("tables as JSON keep cells and the unrounded numbers") {
  roformer::test::TempDir dir;
  const Table table = {"T", {"b", "a"}, {{"x", "1.9"}}, {}};
  CHECK(roformer::to_json(table).dump() ==
        R"({"title":"T","columns":["b","a"],"rows":[{"b":"x","a":"1.9"}],"notes":[]})");
  roformer::write_table(table, {{"x", 1.0 / 3}}, dir / "results.v1");
  CHECK(roformer::read_file(dir / "results.v1.md", 1000) == roformer::to_markdown(table));
  const auto json = nlohmann::json::parse(roformer::read_file(dir / "results.v1.json", 1000));
  CHECK(json["numbers"]["x"].get<double>() == 1.0 / 3);
  CHECK(json["rows"][0]["b"] == "x");
}

TEST_CASE("mean and sample standard deviation") {
  const std::vector<double> values = {2, 4, 4, 4, 5, 5, 7, 9};
  CHECK(roformer::mean(values) == 5);
  CHECK(roformer::sample_sd(values) == Approx(std::sqrt(32.0 / 7)).epsilon(1e-15));
  CHECK(std::isnan(roformer::mean({})));
  CHECK(std::isnan(roformer::sample_sd(std::vector<double>{1})));
}

TEST_CASE("Student's t quantiles") {
  // Closed forms for one, two and four degrees of freedom.
  const double pi = std::acos(-1.0);
  CHECK(roformer::t_quantile(0.975, 1) == Approx(std::tan(pi * 0.475)).epsilon(1e-12));
  CHECK(roformer::t_quantile(0.975, 2) == Approx(0.95 / std::sqrt(2 * 0.975 * 0.025)).epsilon(1e-12));
  const double root = std::sqrt(4 * 0.975 * 0.025);
  CHECK(roformer::t_quantile(0.975, 4) ==
        Approx(2 * std::sqrt(std::cos(std::acos(root) / 3) / root - 1)).epsilon(1e-12));
  // The usual table, three decimals.
  const std::vector<std::pair<double, double>> known = {{1, 12.706}, {2, 4.303},  {3, 3.182},   {4, 2.776},
                                                        {9, 2.262},  {30, 2.042}, {120, 1.980}, {1e7, 1.960}};
  for (const auto& [df, t] : known) CHECK(roformer::t_quantile(0.975, df) == Approx(t).margin(0.0005));
  CHECK(roformer::t_quantile(0.995, 9) == Approx(3.250).margin(0.0005));
  CHECK(roformer::t_quantile(0.025, 9) == -roformer::t_quantile(0.975, 9));
  CHECK(roformer::t_quantile(0.5, 3) == Approx(0).margin(1e-12));
  CHECK(std::isnan(roformer::t_quantile(1, 3)));
  CHECK(std::isnan(roformer::t_quantile(0.5, 0)));
}

TEST_CASE("mean with its 95 % interval") {
  const std::vector<double> two = {1.0, 3.0};  // sd sqrt(2), so the half width is t itself
  CHECK(roformer::t_interval(two) == Approx(12.7062047362).epsilon(1e-10));
  CHECK(roformer::mean_and_interval(two, 2) == "2.00 ± 12.71");
  CHECK(roformer::mean_and_interval(std::vector<double>{1.984}, 2) == "1.98");
  CHECK(roformer::mean_and_interval({}, 2) == "–");
}
