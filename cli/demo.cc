// tilewise demo: one table, standard attention (the matrix in memory, three passes) beside
// Tilewise: time, peak extra memory, largest error against float64. First on recorded q, k, v of a
// language model, then on a long synthetic problem, forward and backward.
#include <fmt/format.h>

#include <algorithm>

#include "cli/demo_data.h"
#include "cli/machine.h"
#include "cli/measure.h"
#include "cli/verbs.h"
#include "problem.h"

namespace tilewise::cli {

namespace {

constexpr const char* kBackends[] = {"standard", "cpu"};
constexpr const char* kNames[] = {"standard attention", "Tilewise"};

// One backend's half of a row of the table.
struct Cell {
  double seconds = 0;  // summed over the problems of the row
  double memory = 0;   // the largest workspace
  double error = 0;    // the largest
};

struct Measured {
  std::string problem;
  Direction direction;
  Cell cells[2];
};

constexpr double kLargestError = 0.02;  // bf16 rounds to 0.004
constexpr double kEnoughSeconds = 1.5;  // no further run of a call after this long

// The fastest of up to three runs; of a long call one is enough.
double fastest_run(const PreparedCall& call) {
  double best = 0;
  double spent = 0;
  for (int i = 0; i < 3 && spent < kEnoughSeconds; ++i) {
    const double start = seconds_now(Clock::wall);
    call.run();
    const double seconds = seconds_now(Clock::wall) - start;
    best = i == 0 ? seconds : std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

void measure(DemoProblem& demo, Direction direction, const char* backend, Cell& cell) {
  Options options = demo.options;
  options.backend = backend;
  const bool backward = direction == Direction::backward;
  const PreparedCall call(direction, backward ? demo.backward : demo.forward, options);
  cell.seconds += fastest_run(call);
  cell.memory = std::max(cell.memory, static_cast<double>(call.plan().workspace_bytes()));
  cell.error = std::max(cell.error, largest_error(demo, call.plan().problem()));
}

// Forward comes before backward, which reads its out and lse.
void measure_group(const std::string& name, std::vector<DemoProblem>& group, Progress& progress,
                   std::vector<Measured>& rows) {
  Measured forward{name, Direction::forward, {}};
  Measured backward{name, Direction::backward, {}};
  for (size_t b = 0; b < std::size(kBackends); ++b) {
    for (DemoProblem& demo : group) {
      progress.begin(name + ", " + kNames[b] + ", forward");
      measure(demo, Direction::forward, kBackends[b], forward.cells[b]);
      progress.begin(name + ", " + kNames[b] + ", backward");
      measure(demo, Direction::backward, kBackends[b], backward.cells[b]);
    }
  }
  rows.push_back(forward);
  rows.push_back(backward);
}

std::string describe_recorded(const std::vector<DemoProblem>& recorded) {
  const Tensors& t = recorded[0].forward;
  return fmt::format(
      "{} layers of SmolLM2-135M: {} tokens, {} query and {} key heads, d {}, {}, "
      "causal",
      recorded.size(), t.q.size[1], t.q.size[2], t.k.size[2], t.q.size[3], name_of(t.q.dtype));
}

std::string describe_long(int64_t length) {
  return fmt::format("{} tokens, 1 head, d 64, fp32, every token sees every other", length);
}

// What standard attention's backward needs at this length.
double standard_bytes(const DemoProblem& demo) {
  Options options = demo.options;
  options.backend = kBackends[0];
  const Plan plan = make_plan(Direction::backward, demo.backward, options);
  return static_cast<double>(plan.workspace_bytes());
}

// The wanted length, or the longest power of two below it at which the matrix fits into memory.
DemoProblem fitting_problem(int64_t& length, std::string& note) {
  const int64_t wanted = length;
  const double available = 0.8 * static_cast<double>(available_memory_bytes());
  while (true) {
    DemoProblem demo = long_problem(length);
    const double needed = standard_bytes(demo);
    if (available <= 0 || needed <= available || length <= 256) return demo;
    if (note.empty()) {
      note = fmt::format(
          "At {} tokens standard attention needs {}, more than this machine has "
          "free ({}): shown at a shorter length.",
          wanted, bytes_text(needed), bytes_text(available / 0.8));
    }
    length /= 2;
  }
}

std::vector<std::string> cells_of(const Measured& row, bool repeat_name) {
  std::vector<std::string> cells = {repeat_name ? row.problem : "",
                                    row.direction == Direction::forward ? "forward" : "backward"};
  for (const Cell& cell : row.cells) {
    cells.push_back(seconds_text(cell.seconds));
    cells.push_back(bytes_text(cell.memory));
    cells.push_back(fmt::format("{:.1e}", cell.error));
  }
  return cells;
}

Row row_of(const Measured& measured, size_t b) {
  const Cell& cell = measured.cells[b];
  Row row;
  row.add("problem", measured.problem);
  row.add("direction",
          std::string(measured.direction == Direction::forward ? "forward" : "backward"));
  row.add("backend", std::string(kBackends[b])).add("ms", cell.seconds * 1e3);
  return row.add("workspace_bytes", static_cast<int64_t>(cell.memory)).add("max_error", cell.error);
}

// `rows` ends with the long problem, forward and backward.
std::string sentence(const std::vector<Measured>& rows, size_t layers, int64_t length) {
  const Measured& forward = rows[rows.size() - 2];
  const Measured& backward = rows[rows.size() - 1];
  Cell total[2];
  for (size_t b = 0; b < 2; ++b) {
    const Cell& f = forward.cells[b];
    const Cell& g = backward.cells[b];
    total[b] = {f.seconds + g.seconds, std::max(f.memory, g.memory), std::max(f.error, g.error)};
  }
  return fmt::format(
      "Shown: on {} layers of a real model and on {} tokens Tilewise gives the attention and the "
      "gradients of standard attention (at {} tokens within {:.0e} of float64, standard within "
      "{:.0e}), and there it takes {} instead of {}, and {} of extra memory instead of {}: {:.0f} "
      "times less.",
      layers, length, length, total[1].error, total[0].error, seconds_text(total[1].seconds),
      seconds_text(total[0].seconds), bytes_text(total[1].memory), bytes_text(total[0].memory),
      total[0].memory / std::max(1.0, total[1].memory));
}

// Errors that rounding cannot explain in any dtype: the sentence would be untrue.
bool all_right(const std::vector<Measured>& rows) {
  for (const Measured& row : rows) {
    for (const Cell& cell : row.cells) {
      if (!(cell.error < kLargestError)) return false;
    }
  }
  return true;
}

void print_report(const Shared& shared, const std::vector<Measured>& measured) {
  std::vector<Row> rows;
  Table table{{"problem", "", ">standard: time", ">memory", ">error", ">Tilewise: time", ">memory",
               ">error"},
              {}};
  for (size_t i = 0; i < measured.size(); ++i) {
    for (size_t b = 0; b < std::size(kBackends); ++b) rows.push_back(row_of(measured[i], b));
    table.rows.push_back(cells_of(measured[i], i % 2 == 0));
  }
  if (shared.format == Format::json) return print_json(shared.command, rows);
  if (shared.format == Format::csv) return print_csv(rows);
  print_table(table, shared.format);
}

}  // namespace

int demo(const DemoOptions& options) {
  std::vector<DemoProblem> recorded = recorded_problems(options.data);
  std::vector<DemoProblem> synthetic;
  std::string note;
  int64_t length = options.length;
  synthetic.push_back(fitting_problem(length, note));
  std::vector<Measured> rows;
  Progress progress(options.shared.progress, "steps",
                    static_cast<int64_t>(4 * (recorded.size() + 1) + 1));
  progress.begin("real, float64");
  compute_float64(recorded);
  measure_group("real", recorded, progress, rows);
  measure_group("synthetic", synthetic, progress, rows);
  progress.clear();
  const bool people =
      options.shared.format == Format::text || options.shared.format == Format::markdown;
  if (people) {
    fmt::print("real       {}\nsynthetic  {}\n", describe_recorded(recorded),
               describe_long(length));
    fmt::print("on         {}, {} threads\n", read_machine().cpu, num_threads());
    fmt::print(
        "time: fastest run; memory: scratch besides inputs and results; error: largest "
        "difference\nfrom float64 over the largest value\n\n");
  }
  print_report(options.shared, rows);
  if (people && !note.empty()) fmt::print("\n{}\n", note);
  const bool right = all_right(rows);
  if (people && right) fmt::print("\n{}\n", sentence(rows, recorded.size(), length));
  if (!right) fmt::print(stderr, "tilewise: demo: an error is above {}\n", kLargestError);
  return right ? 0 : 1;
}

}  // namespace tilewise::cli
