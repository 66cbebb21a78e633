#include "roformer/data/masking.h"

#include <algorithm>
#include <cmath>

#include "roformer/core/error.h"

namespace roformer {
namespace {

/// What happens to the tokens of one choice: one of the three of 80/10/10.
enum class Change { replace, random, keep };

Change draw_change(const MaskingOptions& options, Random& random) {
  const double u = random.uniform();
  if (u < options.replace) return Change::replace;
  return u < options.replace + options.random ? Change::random : Change::keep;
}

/// 1 .. most, geometric with p = 1 / span, cut off at the top.
int64_t draw_span(int64_t span, Random& random) {
  const int64_t most = 2 * span;
  const double log_stay = std::log1p(-1.0 / static_cast<double>(span));
  const double reach = -std::expm1(static_cast<double>(most) * log_stay);
  const double length = 1.0 + std::floor(std::log1p(-random.uniform() * reach) / log_stay);
  return std::clamp(static_cast<int64_t>(length), int64_t{1}, most);
}

}  // namespace

void validate(const MaskingOptions& options) {
  if (options.replace + options.random > 1.0 + 1e-12) fail("replace + random must not exceed 1");
  if (options.whole_words && options.span > 1) fail("whole_words and span exclude each other");
}

MaskTokens::MaskTokens(const Tokenizer& tokenizer)
    : vocab_size(tokenizer.vocab_size()),
      pad(tokenizer.special(Special::pad)),
      mask(tokenizer.special(Special::mask)),
      special(static_cast<size_t>(vocab_size)),
      goes_on(static_cast<size_t>(vocab_size)) {
  for (int64_t id = 0; id < vocab_size; ++id) {
    const auto token = static_cast<int32_t>(id);
    special[static_cast<size_t>(id)] = tokenizer.is_special(token) ? 1 : 0;
    goes_on[static_cast<size_t>(id)] = !tokenizer.is_special(token) && !tokenizer.starts_word(token) ? 1 : 0;
  }
}

void mask_window(std::span<int64_t> ids, const MaskingOptions& options, const MaskTokens& tokens,
                 Random random, std::vector<int64_t>& positions, std::vector<int64_t>& labels) {
  const auto size = static_cast<int64_t>(ids.size());
  const auto ordinary = [&](int64_t i) {
    return tokens.special[static_cast<size_t>(ids[static_cast<size_t>(i)])] == 0;
  };
  thread_local std::vector<int64_t> candidates;
  candidates.clear();
  for (int64_t i = 0; i < size; ++i) {
    if (ordinary(i)) candidates.push_back(i);
  }
  if (candidates.empty()) return;
  const auto goes_on = [&](int64_t i) {
    return tokens.goes_on[static_cast<size_t>(ids[static_cast<size_t>(i)])] != 0;
  };
  const auto any = [&] { return candidates[random.below(candidates.size())]; };

  thread_local std::vector<Change> changes;  // of the chosen tokens
  thread_local std::vector<char> chosen;
  changes.assign(ids.size(), Change::keep);
  chosen.assign(ids.size(), 0);
  const auto choose = [&](int64_t i, Change change) {
    chosen[static_cast<size_t>(i)] = 1;
    changes[static_cast<size_t>(i)] = change;
  };

  int64_t count = 0;
  if (options.span == 1) {
    const auto choose_word = [&](int64_t begin) {
      int64_t i = begin;
      do {
        choose(i, draw_change(options, random));
        ++count;
        ++i;
      } while (options.whole_words && i < size && goes_on(i));
    };
    for (const int64_t i : candidates) {
      // A word cut off at the start of the window begins with its first piece there.
      const bool begins = !options.whole_words || !goes_on(i) || i == 0 || !ordinary(i - 1);
      if (begins && random.uniform() < options.mask) choose_word(i);
    }
    if (count == 0) {
      int64_t i = any();
      while (options.whole_words && i > 0 && goes_on(i) && ordinary(i - 1)) --i;
      choose_word(i);
    }
  } else {
    // Rounded by chance, so that the rate is right on average for short windows too.
    const double wanted = options.mask * static_cast<double>(candidates.size());
    const auto budget = std::max(int64_t{1}, static_cast<int64_t>(wanted + random.uniform()));
    while (count < budget) {
      const int64_t start = any();
      if (chosen[static_cast<size_t>(start)]) continue;
      const int64_t end = std::min({size, start + draw_span(options.span, random), start + budget - count});
      const Change change = draw_change(options, random);
      for (int64_t i = start; i < end && ordinary(i) && !chosen[static_cast<size_t>(i)]; ++i, ++count) {
        choose(i, change);
      }
    }
  }

  for (size_t i = 0; i < ids.size(); ++i) {
    if (!chosen[i]) continue;
    positions.push_back(static_cast<int64_t>(i));
    labels.push_back(ids[i]);
    if (changes[i] == Change::replace) ids[i] = tokens.mask;
    if (changes[i] == Change::random) {
      ids[i] = static_cast<int64_t>(random.below(static_cast<uint64_t>(tokens.vocab_size)));
    }
  }
}

}  // namespace roformer
