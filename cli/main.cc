// tilewise: the command line. This file turns words into options and errors into one line and an
// exit status (0 done, 1 a check failed, 2 bad usage or input); each verb has a file of its own.
// The only file that includes CLI11, because it compiles slowly. Manual: docs/cli.md.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "case/suggest.h"
#include "cli/explain.h"
#include "cli/profile.h"
#include "cli/recorded.h"
#include "cli/tensor_file.h"
#include "cli/verbs.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {

namespace {

struct AllOptions {
  Shared shared;
  RunOptions run;
  CheckOptions check;
  BenchOptions bench;
  DemoOptions demo;
  ExplainOptions explain;
  ProfileOptions profile;
  PrebuildOptions prebuild;
};

ProgressMode progress_mode(const std::string& word) {
  if (word == "auto") return ProgressMode::automatic;
  if (word == "plain") return ProgressMode::plain;
  if (word == "none") return ProgressMode::none;
  throw InputError("--progress is \"" + word + "\", expected auto, plain or none");
}

// Refuses other words; "" = fine.
std::string one_of(const std::string& word, const char* first, const char* second) {
  if (word == first || word == second) return "";
  return "\"" + word + "\" is neither " + first + " nor " + second;
}

// What a verb can do besides --json, --csv and --progress.
enum Abilities { kPlain = 0, kThreads = 1, kMarkdown = 2 };

void add_shared(CLI::App* verb, Shared& shared, int abilities) {
  const auto format_flag = [&](const char* name, Format format, const char* text) {
    return verb->add_flag_callback(
        name, [&shared, format] { shared.format = format; }, text);
  };
  auto* json = format_flag("--json", Format::json, "Print one JSON object");
  auto* csv = format_flag("--csv", Format::csv, "Print comma-separated values");
  json->excludes(csv);
  if ((abilities & kMarkdown) != 0) {
    format_flag("--markdown", Format::markdown, "Print a Markdown table")
        ->excludes(json)
        ->excludes(csv);
  }
  verb->add_option_function<std::string>(
      "--progress", [&shared](const std::string& word) { shared.progress = progress_mode(word); },
      "auto (on a terminal), plain (a line a step) or none");
  if ((abilities & kThreads) != 0) {
    verb->add_option("--threads", shared.threads, "Threads of the cpu backend (default: all cores)")
        ->check(CLI::Range(1, 1024));
  }
}

void add_run(CLI::App& app, AllOptions& all) {
  RunOptions& run = all.run;
  CLI::App* verb = app.add_subcommand("run", "Attention on tensors from a file");
  verb->add_option("files", run.files, "One .safetensors with q, k, v, or q.npy k.npy v.npy")
      ->required()
      ->expected(1, 3);
  verb->add_option("--mask", run.mask, "none, causal, causal_top_left, causal:N, window:L:R");
  verb->add_option("--scale", run.scale, "Scale of the scores (default 1/sqrt(head_dim))");
  verb->add_option("--softcap", run.softcap, "Soft cap of the scores, 0 = off");
  verb->add_option("--dropout", run.dropout, "Probability that a weight is dropped");
  verb->add_option("--seed", run.seed, "Seed of dropout and of --d-out random")
      ->check([](const std::string& word) {
        return word.starts_with("-") ? word + " is negative" : std::string();
      });
  verb->add_option("--layout", run.layout, "Order of the dimensions: bshd or bhsd")
      ->check([](const std::string& word) { return one_of(word, "bshd", "bhsd"); });
  verb->add_option("--backend", run.backend, "gpu, cpu, standard or reference (default: chosen)");
  verb->add_flag("--backward", run.backward, "Gradients too: d_q, d_k, d_v");
  verb->add_option("--d-out", run.d_out, "ones or random, instead of the file's d_out")
      ->check([](const std::string& word) { return one_of(word, "ones", "random"); });
  verb->add_option("-o,--output", run.output, "File to write (default NAME.out.safetensors)");
  add_shared(verb, all.shared, kThreads);
}

void add_cases(CLI::App* verb, std::vector<std::string>& words, std::string& backend) {
  verb->add_option("case", words, "Case text, such as \"b=1 hq=8 q=512 d=64 mask=causal\"")
      ->required();
  verb->add_option("--backend", backend, "Only this one: gpu, cpu, standard or reference");
}

void add_prebuild(CLI::App& app, AllOptions& all) {
  PrebuildOptions& prebuild = all.prebuild;
  CLI::App* verb = app.add_subcommand("prebuild", "Compile GPU kernels of Cases ahead of time");
  verb->add_option("case", prebuild.words, "Case text")->required();
  verb->add_option("--arch", prebuild.arch, "Architecture, such as sm_90a")->required();
  verb->add_option("--pack", prebuild.pack, "Folder to fill (default: beside the program)");
  add_shared(verb, all.shared, kPlain);
}

void add_explain(CLI::App& app, AllOptions& all) {
  ExplainOptions& explain = all.explain;
  CLI::App* verb = app.add_subcommand("explain", "What a Case costs, and why, without running it");
  verb->add_option("case", explain.words, "Case text (default: the published example)");
  verb->add_option("--machine", explain.machine,
                   "example, a100, h100 or h200 (default: h100; without a Case example)");
  verb->add_option("--flops", explain.flops, "FLOP/s of the machine, such as 300e12");
  verb->add_option("--bandwidth", explain.bandwidth, "Bytes/s of its memory, such as 2e12");
  verb->add_option("--exps", explain.exps, "Exponentials/s");
  verb->add_option("--sram", explain.sram, "Fast memory of a core, such as 192K");
  verb->add_option("--cache", explain.cache, "Cache that all cores share, such as 50M");
  verb->add_option("--scores", explain.scores,
                   "Only the online softmax of these scores, block by block: \"1,3|2,5\"");
  verb->add_flag("--published", explain.published,
                 "Count as published: no row statistics, every number as wide as the dtype");
  add_shared(verb, all.shared, kPlain);
}

void add_profile(CLI::App& app, AllOptions& all) {
  ProfileOptions& profile = all.profile;
  CLI::App* verb = app.add_subcommand("profile", "Whether Tilewise helps a Case on this machine");
  verb->add_option("case", profile.words, "Case text");
  verb->add_option("--device", profile.device, "cpu (default) or cuda: measure on the GPU")
      ->check([](const std::string& word) { return one_of(word, "cpu", "cuda"); });
  verb->add_option("--html", profile.html, "Write a report with pictures to this file");
  verb->add_option("--svg", profile.svg, "Write each picture as a file to this folder");
  verb->add_option("--from", profile.from, "Draw what --json printed to this file; no Case");
  verb->add_option("--hidden", profile.hidden, "Width of the layer around (default hq x d)")
      ->check(CLI::Range(1, 1 << 24));
  verb->add_option("--ffn", profile.ffn, "Width of its feed-forward (default 8/3 of hidden)")
      ->check(CLI::Range(1, 1 << 24));
  verb->add_option("-r,--repetitions", profile.repetitions, "Samples of each (default 7)")
      ->check(CLI::Range(1, 1000000));
  add_shared(verb, all.shared, kThreads);
}

void add_verbs(CLI::App& app, AllOptions& all) {
  add_run(app, all);
  CLI::App* check = app.add_subcommand("check", "Compare backends with float64");
  add_cases(check, all.check.words, all.check.backend);
  add_shared(check, all.shared, kThreads);
  CLI::App* bench = app.add_subcommand("bench", "Measure time and rate");
  add_cases(bench, all.bench.words, all.bench.backend);
  bench->add_option("-r,--repetitions", all.bench.repetitions, "Samples of each (default 11)")
      ->check(CLI::Range(1, 1000000));
  add_shared(bench, all.shared, kThreads | kMarkdown);
  add_shared(app.add_subcommand("support", "What each backend can do"), all.shared, kMarkdown);
  add_shared(app.add_subcommand("doctor", "What this machine has, and what to do about lacks"),
             all.shared, kPlain);
  CLI::App* demo = app.add_subcommand("demo", "Standard attention beside Tilewise, in one table");
  demo->add_option("--data", all.demo.data, "Folder of the recorded tensors (tests/data)");
  demo->add_option("--length", all.demo.length, "Rows of the long problem (default 16384)")
      ->check(CLI::Range(16, 1 << 20));
  add_shared(demo, all.shared, kThreads | kMarkdown);
  add_prebuild(app, all);
  add_explain(app, all);
  add_profile(app, all);
}

// ", did you mean ...?", or else what is known.
std::string hint(std::string_view word, const std::vector<std::string>& known,
                 const std::string& otherwise) {
  const std::vector<std::string_view> views(known.begin(), known.end());
  const std::string near = suggestion(word, views);
  return near.empty() ? otherwise : near;
}

// Words that CLI11 would report badly: a wrong verb, a wrong flag.
void check_words(const CLI::App& app, const std::vector<std::string>& words) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  if (words[0].starts_with("-")) {
    const std::vector<std::string> known = {"--help", "-h", "--version"};
    if (std::find(known.begin(), known.end(), words[0]) != known.end()) return;
    throw InputError("flag \"" + words[0] + "\" is not known before a verb" +
                     hint(words[0], known, ", expected a verb: " + CLI::detail::join(verbs, ", ")));
  }
  if (std::find(verbs.begin(), verbs.end(), words[0]) == verbs.end()) {
    throw InputError("verb \"" + words[0] + "\" is not known" +
                     hint(words[0], verbs, ", expected " + CLI::detail::join(verbs, ", ")));
  }
  const CLI::App* verb = app.get_subcommand(words[0]);
  std::vector<std::string> flags;
  for (const CLI::Option* option : verb->get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  for (size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    const std::string flag = words[i].substr(0, words[i].find('='));
    if (!flag.starts_with("--") || verb->get_option_no_throw(flag) != nullptr) continue;
    throw InputError(words[0] + ": flag \"" + flag + "\" is not known" +
                     hint(flag, flags, ", see tilewise " + words[0] + " --help"));
  }
}

int run_verb(const std::string& verb, AllOptions& all) {
  set_case_file_reader(&read_recording);
  if (all.shared.threads > 0) set_num_threads(all.shared.threads);
  all.run.shared = all.check.shared = all.bench.shared = all.demo.shared = all.shared;
  all.explain.shared = all.profile.shared = all.prebuild.shared = all.shared;
  if (verb == "run") return run(all.run);
  if (verb == "check") return check(all.check);
  if (verb == "bench") return bench(all.bench);
  if (verb == "support") return support(all.shared);
  if (verb == "doctor") return doctor(all.shared);
  if (verb == "prebuild") return prebuild(all.prebuild);
  if (verb == "explain") return explain(all.explain);
  if (verb == "profile") return profile(all.profile);
  return demo(all.demo);
}

int parse_and_run(int argc, char** argv) {
  AllOptions all;
  CLI::App app("Exact attention, tile by tile.", "tilewise");
  app.set_version_flag("--version", "tilewise " + std::string(version()));
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error&) { return std::string(); });
  add_verbs(app, all);
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) {
    std::cout << app.help();
    return 2;
  }
  check_words(app, words);
  all.shared.command = "tilewise";
  for (const std::string& word : words) {
    const bool quote = word.find(' ') != std::string::npos;
    all.shared.command += quote ? " \"" + word + "\"" : " " + word;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const auto chosen = app.get_subcommands();
    throw InputError((chosen.empty() ? "" : chosen[0]->get_name() + ": ") + error.what());
  }
  return run_verb(app.get_subcommands()[0]->get_name(), all);
}

int report(const std::string& message) {
  std::fprintf(stderr, "tilewise: %s\n", one_line(message).c_str());
  return 2;
}

}  // namespace

int main_of(int argc, char** argv) {
  try {
    const int status = parse_and_run(argc, argv);
    if (std::fflush(stdout) != 0) return report("standard output: cannot be written");
    return status;
  } catch (const std::bad_alloc&) {
    return report("out of memory");
  } catch (const std::exception& error) {
    return report(error.what());
  }
}

}  // namespace tilewise::cli

int main(int argc, char** argv) { return tilewise::cli::main_of(argc, argv); }
