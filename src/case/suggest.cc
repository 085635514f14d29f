// Nearest by edits: letters inserted, removed, replaced or swapped, at most a third of the longer
// word.
#include "case/suggest.h"

#include <algorithm>
#include <vector>

namespace tilewise {

namespace {

size_t edits_between(std::string_view a, std::string_view b) {
  const size_t width = b.size() + 1;
  std::vector<size_t> edits((a.size() + 1) * width);  // [i, j]: of the first i and j letters
  const auto at = [&](size_t i, size_t j) -> size_t& { return edits[i * width + j]; };
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        at(i, j) = i + j;
        continue;
      }
      const size_t replaced = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({replaced, at(i - 1, j) + 1, at(i, j - 1) + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
    }
  }
  return at(a.size(), b.size());
}

}  // namespace

std::string suggestion(std::string_view word, std::span<const std::string_view> known) {
  std::string_view best;
  size_t fewest = SIZE_MAX;
  for (const std::string_view candidate : known) {
    const size_t edits = edits_between(word, candidate);
    const size_t longer = std::max(word.size(), candidate.size());
    if (!word.empty() && edits < fewest && edits * 3 <= std::max<size_t>(longer, 3)) {
      best = candidate;
      fewest = edits;
    }
  }
  return best.empty() ? "" : ", did you mean \"" + std::string(best) + "\"?";
}

}  // namespace tilewise
