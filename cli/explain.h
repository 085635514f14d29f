// tilewise explain: what attention costs and why, without running it. The parts that are tables are
// made of src/cost; the walk through an online softmax is explain_scores.cc.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/verbs.h"
#include "tilewise/cost.hpp"

namespace tilewise::cli {

struct ExplainOptions {
  Shared shared;
  std::vector<std::string> words;  // a Case; none: the published example
  std::string machine;             // a preset; "": example without a Case, else h100
  std::optional<double> flops;     // these replace what the preset says
  std::optional<double> bandwidth;
  std::optional<double> exps;
  std::string cache;                  // "50M"; "": the machine's
  std::string sram;                   // "192K"; "": the machine's fast memory of one core
  std::optional<std::string> scores;  // "1,3|2,5": only the online softmax
  bool published = false;             // Accounting::simple
};
int explain(const ExplainOptions& options);

// The --scores part: the recurrence block by block.
int explain_scores(const ExplainOptions& options);

// A Case as the cost model reads it.
AttentionShape shape_of(const Case& c);

// Schedules that matter for a shape: forward; with few rows decode; with `backward` the gradients.
std::vector<Schedule> schedules_for(const AttentionShape& shape, bool backward);

// The tiled schedule to hold against standard: decode for few rows, else K and V outside in the
// published accounting, q outside in the full one.
Schedule tiled_schedule(const AttentionShape& shape, bool backward, Accounting accounting);

// "136.3 MB", "34.4 GB": decimal units, as bandwidths are given.
std::string decimal_bytes_text(double bytes);
// "16,777,216".
std::string grouped(double whole);
// "192K", "1.5M", "65536" to bytes, K = 1024. Throws InputError.
double parse_bytes(const std::string& text, const std::string& flag);

}  // namespace tilewise::cli
