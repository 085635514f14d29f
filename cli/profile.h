// tilewise profile: standard attention and Tilewise on the same tensors in one run, held against
// the roofs of this machine and the IO model, with advice. profile.cc measures, advice.cc judges,
// profile_text.cc prints, profile_rows.cc writes and reads, html_report.cc and pictures.cc draw.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/explain.h"
#include "cli/measure.h"
#include "cli/roofs.h"
#include "cli/verbs.h"
#include "tilewise/cost.hpp"

namespace tilewise::cli {

struct ProfileOptions {
  Shared shared;
  std::vector<std::string> words;  // one Case
  std::string device;              // "cpu" or "cuda"; "": cpu
  std::string from;                // a profile that --json printed, instead of measuring; "": none
  std::string html;                // file to write; "": none
  std::string svg;                 // folder to write the pictures to; "": none
  int64_t hidden = 0;              // of the transformer layer around; 0: q_heads x d
  int64_t ffn = 0;                 // 0: 8/3 of hidden
  int repetitions = 7;
};
int profile(const ProfileOptions& options);

// One way to compute the Case, as it was measured.
struct ProfiledPath {
  std::string name;     // "standard attention", "Tilewise"
  std::string backend;  // that ran
  std::string why_not;  // "": it ran
  Timing timing;
  double useful_flops = 0;
  int64_t workspace_bytes = 0;
  Schedule schedule = Schedule::standard;
  Cost model;

  bool ran() const { return why_not.empty(); }
  double gflops() const { return ran() ? useful_flops / timing.median_s * 1e-9 : 0; }
  // Part of the time that the roofs ask for.
  double roof_share() const { return ran() ? model.passes_s / timing.median_s : 0; }
};

// Both ways at one length.
struct ProfiledCase {
  Case text;
  AttentionShape shape;
  ProfiledPath standard;
  ProfiledPath tiled;
};

// The transformer layer around the attention: time of everything else, by its operations and
// weights.
struct LayerEstimate {
  int64_t hidden = 0;
  int64_t ffn = 0;
  double rest_s = 0;
  double share(double attention_s) const { return attention_s / (attention_s + rest_s); }
};

enum class Verdict { worth_it, little_to_gain, not_compared };
std::string_view name_of(Verdict verdict);

struct Advice {
  Verdict verdict = Verdict::not_compared;
  std::string text;
};

struct Profile {
  MeasuredRoofs roofs;
  int threads = 0;          // 0: on a GPU
  double others_cores = 0;  // that other processes kept busy meanwhile
  ProfiledCase main;
  std::vector<ProfiledCase> lengths;  // shorter ones and the main one, for the report
  LayerEstimate layer;
  Advice advice;

  bool on_device() const { return threads == 0; }
};

// "AMD EPYC, 2 threads", "NVIDIA H200".
std::string machine_text(const Profile& profile);

// The IO model of both paths; `on_device`: standard attention keeps its matrix in the Case's dtype,
// else in fp32.
void add_models(ProfiledCase& profiled, const MachineRoofs& machine, bool on_device);
Advice advice_of(const Profile& profile);
std::vector<Row> profile_rows(const Profile& profile);
// The profile that these rows were printed from, to six digits. Throws InputError that begins with
// `source` when they are of something else.
Profile read_profile(const std::vector<Row>& rows, const std::string& source);
void print_profile(const Profile& profile);

}  // namespace tilewise::cli
