// The verbs, one function and one file each, and the options that main.cc reads for them. A verb
// returns the exit status: 0 all is well, 1 a check failed; bad input throws (status 2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "case/case.h"
#include "cli/progress.h"
#include "cli/report.h"

namespace tilewise::cli {

struct Shared {  // options of every verb
  Format format = Format::text;
  ProgressMode progress = ProgressMode::automatic;
  int threads = 0;      // 0: the default
  std::string command;  // as typed
};

struct RunOptions {
  Shared shared;
  std::vector<std::string> files;
  std::string mask = "none";  // of the Case text
  std::string layout = "bshd";
  std::string backend;
  std::string d_out;  // "", "ones", "random"
  std::string output;
  std::optional<double> scale;
  double softcap = 0;
  double dropout = 0;
  uint64_t seed = 0;
  bool backward = false;
};
int run(const RunOptions& options);

struct CheckOptions {
  Shared shared;
  std::vector<std::string> words;
  std::string backend;  // "": each but the reference
};
int check(const CheckOptions& options);

struct BenchOptions {
  Shared shared;
  std::vector<std::string> words;
  std::string backend;
  int repetitions = 11;
};
int bench(const BenchOptions& options);

int support(const Shared& shared);
int doctor(const Shared& shared);

struct PrebuildOptions {
  Shared shared;
  std::vector<std::string> words;
  std::string arch;  // "sm_90a"
  std::string pack;  // "": beside the program
};
int prebuild(const PrebuildOptions& options);

struct DemoOptions {
  Shared shared;
  std::string data;  // folder of the recorded tensors; "": looked for
  int64_t length = 16384;
};
int demo(const DemoOptions& options);

// Cases from the words of a command line. A word with a space is a whole Case; words without make
// one Case together, so that the quotes may be left out when there is one. Throws Error.
std::vector<Case> cases_of(const std::vector<std::string>& words);

// Throws before anything is allocated: InputError when the tensors of a Case would not fit into the
// memory that is free, Error when check() refuses the problem.
void check_cases(const std::vector<Case>& cases);

// In the order they are asked.
std::vector<std::string> backend_names();

// Throws InputError, with "did you mean", when no backend has this name; "" is fine.
void check_backend(const std::string& name);

}  // namespace tilewise::cli
