// Nearest by edits: letters inserted, removed or replaced, at most a third of the longer word.
#include "case/suggest.h"

#include <algorithm>
#include <vector>

namespace tilewise {

namespace {

size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<size_t> line(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) line[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = line[0];
    line[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = line[j];
      line[j] = std::min({replaced, line[j] + 1, line[j - 1] + 1});
    }
  }
  return line[b.size()];
}

}  // namespace

std::string suggestion(std::string_view word, std::span<const std::string_view> known) {
  std::string_view best;
  size_t fewest = SIZE_MAX;
  for (const std::string_view candidate : known) {
    const size_t edits = edits_between(word, candidate);
    const size_t longer = std::max(word.size(), candidate.size());
    if (edits < fewest && edits * 3 <= std::max<size_t>(longer, 3)) {
      best = candidate;
      fewest = edits;
    }
  }
  return best.empty() ? "" : ", did you mean \"" + std::string(best) + "\"?";
}

}  // namespace tilewise
