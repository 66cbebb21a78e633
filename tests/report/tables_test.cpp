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

TEST_CASE("tables as CSV follow RFC 4180") {
  const Table table = {"not in it",
                       {"arm", "a \"quoted\", cell"},
                       {{"x,y", "two\r\nlines"}, {"", roformer::unrounded(0.1)}},
                       {"nor this"}};
  CHECK(roformer::to_csv(table) ==
        "arm,\"a \"\"quoted\"\", cell\"\r\n"
        "\"x,y\",\"two\r\nlines\"\r\n"
        ",0.1\r\n");
  CHECK_THROWS_AS(roformer::to_csv({"", {"x"}, {{"1", "2"}}, {}}), std::logic_error);
  CHECK(roformer::unrounded(1.0 / 3) == "0.3333333333333333");
  CHECK(roformer::unrounded(NAN).empty());
  CHECK(roformer::unrounded(INFINITY).empty());
}

TEST_CASE("columns of numbers") {
  const Table table = {"", {"a", "b", "c"}, {{"x", "-1", "+0.1 ± 2"}, {"1", "–", ""}, {"2", "3", "<1"}}, {}};
  CHECK(roformer::number_columns(table) == std::vector<bool>{false, true, false});
  CHECK(roformer::number_columns({"", {"a"}, {}, {}}) == std::vector<bool>{false});
}

TEST_CASE("median") {
  CHECK(roformer::median(std::vector<double>{3, 1, 2}) == 2);
  CHECK(roformer::median(std::vector<double>{4, 1, 2, 3}) == 2.5);
  CHECK(std::isnan(roformer::median({})));
}

TEST_CASE("Student's t distribution") {
  // scipy 1.17.1: scipy.stats.t.cdf(t, df).
  struct Known {
    double t, df, probability;
  };
  const std::vector<Known> known = {{-4.302652729911275, 2, 0.024999999998258315},
                                    {0.7, 2, 0.7218034876835673},
                                    {-0.1, 2, 0.4647327192070701},
                                    {1.5, 3, 0.8847080673775886},
                                    {-2.5, 5, 0.02724504967118813},
                                    {-12, 4, 0.0001382142742514865},
                                    {-30, 2, 0.0005546313409798295},
                                    {2.2, 9.5, 0.9730941214535371},
                                    {-1e-3, 7, 0.4996150086224994},
                                    {-1, 1, 0.25},
                                    {-8, 200, 4.939600454665298e-14},
                                    {3, 1e6, 0.9986500687292891},
                                    {-50, 30, 9.357708829611355e-31}};
  for (const auto& [t, df, probability] : known) {
    INFO("t " << t << " df " << df);
    // lgamma of 1e6 / 2 costs half the digits of the two tails.
    CHECK(roformer::t_cdf(t, df) == Approx(probability).epsilon(df > 1e5 ? 1e-11 : 1e-12));
  }
  CHECK(roformer::t_cdf(0, 3) == 0.5);
  CHECK(roformer::t_cdf(-INFINITY, 3) == 0);
  CHECK(roformer::t_cdf(INFINITY, 3) == 1);
  CHECK(std::isnan(roformer::t_cdf(NAN, 3)));
  CHECK(std::isnan(roformer::t_cdf(1, 0)));
  for (const double p : {0.001, 0.2, 0.975})
    CHECK(roformer::t_cdf(roformer::t_quantile(p, 6), 6) == Approx(p).epsilon(1e-12));
}

TEST_CASE("paired differences") {
  // scipy 1.17.1: scipy.stats.ttest_rel(second, first), with its confidence_interval().
  const std::vector<double> first = {2.5, 2.25, 2.75, 2.0}, second = {2.25, 2.0, 2.625, 1.5};
  const roformer::PairedDifference found = roformer::paired_difference(first, second);
  CHECK(found.mean == -0.28125);
  CHECK(found.p_value == Approx(0.037386073468498635).epsilon(1e-12));
  CHECK(found.mean - found.interval == Approx(-0.5315306531669907).epsilon(1e-12));
  CHECK(found.mean + found.interval == Approx(-0.030969346833009337).epsilon(1e-12));
  // The other way round the same, but for the sign.
  CHECK(roformer::paired_difference(second, first).mean == 0.28125);
  CHECK(roformer::paired_difference(second, first).p_value == found.p_value);

  const roformer::PairedDifference one = roformer::paired_difference(std::vector{1.0}, std::vector{1.5});
  CHECK(one.mean == 0.5);
  CHECK(std::isnan(one.interval));
  CHECK(std::isnan(one.p_value));
  CHECK(std::isnan(roformer::paired_difference({}, {}).mean));
  CHECK(std::isnan(roformer::paired_difference(first, first).p_value));  // nothing to test
  CHECK(roformer::paired_difference(std::vector{1.0, 2.0}, std::vector{1.5, 2.5}).p_value == 0);
  CHECK_THROWS_AS(roformer::paired_difference(first, {}), std::logic_error);
}
