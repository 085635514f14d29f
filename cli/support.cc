// tilewise support: what each backend can do, asked from the backends themselves: each feature is a
// small Case, and the answer is why_not() of that Case. The README's matrix is this, in Markdown.
#include <fmt/format.h>

#include <algorithm>

#include "backend.h"
#include "case/case_tensors.h"
#include "case/device_mirror.h"
#include "cli/verbs.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {

namespace {

struct Feature {
  const char* name;
  const char* words;  // added to the small problem below
};

// Forward and, with dir=bwd, backward are asked.
constexpr const char* kSmall = "b=2 hq=2 q=5 d=16 ";

constexpr Feature kFeatures[] = {
    {"fp32", "dtype=fp32"},
    {"bf16", "dtype=bf16"},
    {"fp16", "dtype=fp16"},
    {"causal, bottom-right", "kv=9 mask=causal"},
    {"causal, top-left", "kv=9 mask=causal_top_left"},
    {"causal at an offset", "kv=9 mask=causal:2"},
    {"sliding window", "kv=9 mask=window:2:1"},
    {"grouped heads (GQA, MQA)", "hkv=1"},
    {"value_dim other than head_dim", "dv=24"},
    {"any head_dim from 1 to 256", "d=1|d=111|d=256"},
    {"scale, softcap", "scale=0.5 softcap=20"},
    {"ALiBi", "alibi=1"},
    {"attention sink, with its gradient", "sink=1"},
    {"dropout (Philox)", "dropout=0.1"},
    {"log-sum-exp out", "lse=1"},
    {"gradient of log-sum-exp in", "dlse=1"},
    {"packed batches (varlen)", "qlens=3,0,5 kvlens=4,2,0"},
    {"layouts bshd, bhsd, packed qkv", "layout=bshd|layout=bhsd|layout=packed_qkv"},
    {"any strides", "layout=strided"},
    {"no rows, no keys", "q=0|kv=0"},
    {"bitwise repeatable", "deterministic=1"},
};

// A word of `added` replaces the word of the same key in the small problem.
std::string case_text(const std::string& added, bool backward) {
  std::string text;
  const std::string small = kSmall;
  const bool packed = added.find("qlens=") != std::string::npos;
  for (size_t at = 0; at < small.size();) {
    const size_t end = small.find(' ', at);
    const std::string word = small.substr(at, end - at);
    const std::string key = word.substr(0, word.find('=') + 1);
    const bool replaced = (" " + added).find(" " + key) != std::string::npos;
    const bool given_by_lengths = packed && (key == "b=" || key == "q=");
    if (!replaced && !given_by_lengths) text += word + " ";
    at = end + 1;
  }
  return text + added + (backward ? " dir=bwd" : "");
}

std::vector<std::string> alternatives(const std::string& words) {
  std::vector<std::string> found;
  for (size_t at = 0; at <= words.size();) {
    const size_t end = std::min(words.find('|', at), words.size());
    found.push_back(words.substr(at, end - at));
    at = end + 1;
  }
  return found;
}

struct Answer {
  std::string backend;
  bool asked[2] = {};  // forward, backward
  std::vector<std::string> reasons[2];
  bool can(size_t direction) const { return asked[direction] && reasons[direction].empty(); }
};

// What each backend says of a Case; those that take device memory, of the same call there, and in
// bf16 when the Case names no dtype: that is what GPUs compute in.
std::vector<BackendAnswer> ask_backends(const std::string& text) {
  const bool any_dtype = text.find("dtype=") == std::string::npos;
  const CaseTensors host(parse_case(text), Poison::off);
  const CaseTensors device(parse_case(text + (any_dtype ? " dtype=bf16" : "")), Poison::off);
  const auto call_of = [](const CaseTensors& tensors) {
    return tensors.text().dir == Direction::backward ? tensors.backward() : tensors.forward();
  };
  const Direction direction = host.text().dir;
  std::vector<BackendAnswer> answers = why_not(direction, call_of(host), host.options());
  const std::vector<BackendAnswer> on_device =
      why_not(direction, as_device_tensors(call_of(device)), device.options());
  for (size_t i = 0; i < answers.size(); ++i) {
    if (takes_device_memory(answers[i].backend)) answers[i] = on_device[i];
  }
  return answers;
}

std::vector<Answer> ask(const Feature& feature) {
  std::vector<Answer> answers;
  for (const std::string& words : alternatives(feature.words)) {
    for (const bool backward : {false, true}) {
      // Only backward takes a gradient of lse.
      if (!backward && words.find("dlse=1") != std::string::npos) continue;
      const std::vector<BackendAnswer> given = ask_backends(case_text(words, backward));
      answers.resize(given.size());
      for (size_t i = 0; i < given.size(); ++i) {
        answers[i].backend = given[i].backend;
        answers[i].asked[backward ? 1 : 0] = true;
        auto& reasons = answers[i].reasons[backward ? 1 : 0];
        for (const std::string& reason : given[i].reasons) {
          if (std::find(reasons.begin(), reasons.end(), reason) == reasons.end()) {
            reasons.push_back(reason);
          }
        }
      }
    }
  }
  return answers;
}

std::string cell_of(const Answer& answer) {
  const bool both = answer.can(0) && answer.can(1);
  if (both || (answer.can(1) && !answer.asked[0])) return "yes";
  if (answer.can(0)) return "forward";
  return answer.can(1) ? "backward" : "no";
}

}  // namespace

int support(const Shared& shared) {
  Table table{{"feature"}, {}};
  std::vector<Row> rows;
  std::vector<std::string> notes;
  for (const Feature& feature : kFeatures) {
    std::vector<std::string> cells = {feature.name};
    for (const Answer& answer : ask(feature)) {
      if (table.rows.empty()) table.headings.push_back(answer.backend);
      cells.push_back(cell_of(answer));
      Row row;
      row.add("feature", std::string(feature.name)).add("backend", answer.backend);
      row.add("forward", answer.can(0)).add("backward", answer.can(1));
      for (const auto& reasons : answer.reasons) {
        for (const std::string& reason : reasons) {
          const std::string note = answer.backend + ": " + reason;
          if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
        }
        if (!reasons.empty()) row.add("reason", reasons[0]);
      }
      rows.push_back(row);
    }
    table.rows.push_back(cells);
  }
  if (shared.format == Format::json) print_json(shared.command, rows);
  if (shared.format == Format::csv) print_csv(rows);
  if (shared.format == Format::json || shared.format == Format::csv) return 0;
  print_table(table, shared.format);
  if (shared.format == Format::markdown && !notes.empty()) fmt::print("\n");
  for (const std::string& note : notes) {
    fmt::print("{}{}\n", shared.format == Format::markdown ? "- " : "  ", note);
  }
  return 0;
}

}  // namespace tilewise::cli
