// Progress of long work, on stderr: steps done, rate, time left. Drawn on one line when stderr is a
// terminal, silent when it is not, one plain line a step when asked for.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace tilewise::cli {

enum class ProgressMode { automatic, plain, none };

class Progress {
 public:
  // unit: what a step is, in the plural: "cases".
  Progress(ProgressMode mode, std::string_view unit, int64_t total);
  ~Progress();  // clears the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Names the step that begins; the one before it is done.
  void begin(std::string_view step);
  // Clears the line, so that something can be printed; the next begin() draws it again.
  void clear();

 private:
  void draw(std::string_view step);
  enum class Style { silent, lines, terminal };
  Style style_;
  bool colour_;  // escape sequences may be used
  std::string unit_;
  int64_t total_;
  int64_t done_ = -1;
  size_t drawn_ = 0;  // characters on the line
  std::chrono::steady_clock::time_point start_;
};

}  // namespace tilewise::cli
