// One line, redrawn in place; NO_COLOR keeps escape sequences out of it.
#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace tilewise::cli {

namespace {

constexpr size_t kWidth = 100;

bool no_color() {
  const char* value = std::getenv("NO_COLOR");
  return value != nullptr && value[0] != '\0';
}

std::string duration_text(double seconds) {
  if (seconds < 99.5) return fmt::format("{:.0f} s", seconds);
  return fmt::format("{:.0f} min", seconds / 60);
}

}  // namespace

Progress::Progress(ProgressMode mode, std::string_view unit, int64_t total)
    : style_(mode == ProgressMode::plain                                       ? Style::lines
             : mode == ProgressMode::automatic && ::isatty(STDERR_FILENO) == 1 ? Style::terminal
                                                                               : Style::silent),
      colour_(!no_color()),
      unit_(unit),
      total_(total),
      start_(std::chrono::steady_clock::now()) {}

Progress::~Progress() { clear(); }

void Progress::begin(std::string_view step) {
  ++done_;
  if (style_ != Style::silent) draw(step);
}

void Progress::draw(std::string_view step) {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  std::string line = fmt::format("{}/{} {}", done_ + 1, total_, unit_);
  if (done_ > 0 && elapsed.count() > 0) {
    const double rate = static_cast<double>(done_) / elapsed.count();
    line += fmt::format("  {:.3g} {}/s  {} left", rate, unit_,
                        duration_text(static_cast<double>(total_ - done_) / rate));
  }
  line += fmt::format("  {}", step);
  if (style_ == Style::lines) {
    fmt::print(stderr, "{}\n", line);
    return;
  }
  if (line.size() > kWidth) line.resize(kWidth);
  clear();
  fmt::print(stderr, "{}{}{}", colour_ ? "\x1b[2m" : "", line, colour_ ? "\x1b[0m" : "");
  std::fflush(stderr);
  drawn_ = line.size();
}

void Progress::clear() {
  if (drawn_ == 0) return;
  if (colour_) {
    fmt::print(stderr, "\r\x1b[K");
  } else {
    fmt::print(stderr, "\r{:{}}\r", "", drawn_);
  }
  std::fflush(stderr);
  drawn_ = 0;
}

}  // namespace tilewise::cli
