// tilewise explain [CASE]: the IO model in words and numbers: what each schedule moves and
// computes, which roof of the machine limits it, and which tiles fit into fast memory.
#include "cli/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/measure.h"
#include "cli/tensor_file.h"

namespace tilewise::cli {

namespace {

constexpr const char* kExample = "q=4096 d=64 dtype=fp16";

// Everything that is printed, in whatever form.
struct Explained {
  Case text;
  AttentionShape shape;
  MachineRoofs machine;
  Accounting accounting = Accounting::full;
  bool backward = false;
  std::vector<Schedule> schedules;
  std::vector<Cost> costs;  // one for each schedule
  size_t tiled = 0;         // the one to hold against costs[0]

  const Cost& standard() const { return costs[0]; }
  const Cost& best() const { return costs[tiled]; }
};

MachineRoofs machine_of(const ExplainOptions& options, DType dtype) {
  const std::string fallback = options.words.empty() ? "example" : "h100";
  MachineRoofs machine =
      machine_preset(options.machine.empty() ? fallback : options.machine, dtype);
  if (options.flops || options.bandwidth || options.exps) machine.name += ", changed";
  machine.flops_per_s = options.flops.value_or(machine.flops_per_s);
  machine.bytes_per_s = options.bandwidth.value_or(machine.bytes_per_s);
  machine.exps_per_s = options.exps.value_or(machine.exps_per_s);
  if (!options.sram.empty()) machine.fast_bytes = parse_bytes(options.sram, "--sram");
  if (!options.cache.empty()) machine.cache_bytes = parse_bytes(options.cache, "--cache");
  return machine;
}

// Refuses a fast memory into which not even one row and one key fit.
void check_room(const Explained& e) {
  const double least = working_set_bytes(e.shape, {e.schedules[e.tiled], e.accounting, 1, 1});
  if (least <= e.machine.fast_bytes) return;
  throw InputError(fmt::format("--sram: {} of fast memory, but one row and one key take {}",
                               bytes_text(e.machine.fast_bytes), bytes_text(least)));
}

Case one_case(const std::vector<std::string>& words) {
  if (words.empty()) return parse_case(kExample);
  const std::vector<Case> cases = cases_of(words);
  if (cases.size() > 1) {
    throw InputError(fmt::format("explain: {} Cases, expected one", cases.size()));
  }
  return cases[0];
}

Explained explained(const ExplainOptions& options) {
  Explained e;
  e.text = one_case(options.words);
  e.shape = shape_of(e.text);
  e.machine = machine_of(options, e.shape.dtype);
  const bool simple = options.published || options.words.empty();
  e.accounting = simple ? Accounting::simple : Accounting::full;
  e.backward = e.text.dir == Direction::backward;
  e.schedules = schedules_for(e.shape, e.backward);
  const Schedule tiled = tiled_schedule(e.shape, e.backward, e.accounting);
  for (size_t i = 0; i < e.schedules.size(); ++i) {
    e.costs.push_back(cost(e.shape, {e.schedules[i], e.accounting}, e.machine));
    if (e.schedules[i] == tiled) e.tiled = i;
  }
  check_room(e);
  return e;
}

// ---- tables ----

Table schedule_table(const Explained& e) {
  Table table{{"schedule", ">traffic", ">FLOP/byte", ">memory", ">compute", ">exp", "bound by",
               ">tile", ">fast memory", ">extra memory"},
              {}};
  for (size_t i = 0; i < e.costs.size(); ++i) {
    const Cost& c = e.costs[i];
    table.rows.push_back(
        {std::string(name_of(e.schedules[i])), decimal_bytes_text(c.bytes()),
         fmt::format("{:.1f}", c.intensity), seconds_text(c.memory_s), seconds_text(c.compute_s),
         e.machine.exps_per_s > 0 ? seconds_text(c.exp_s) : "-", std::string(name_of(c.bound)),
         c.tile_rows > 0 ? fmt::format("{} x {}", c.tile_rows, c.tile_keys) : "-",
         c.tile_rows > 0 ? bytes_text(c.working_set_bytes) : "-", bytes_text(c.extra_bytes)});
  }
  return table;
}

Table traffic_table(const Explained& e) {
  Table table{{"schedule", "pass", "tensor", ">read", ">written", ">from cache"}, {}};
  for (size_t i = 0; i < e.costs.size(); ++i) {
    std::string schedule(name_of(e.schedules[i]));
    std::string last_pass;
    for (const Traffic& item : e.costs[i].traffic) {
      const auto cell = [](double bytes) { return bytes > 0 ? decimal_bytes_text(bytes) : ""; };
      table.rows.push_back({schedule, item.pass == last_pass ? "" : item.pass, item.tensor,
                            cell(item.read_bytes), cell(item.write_bytes),
                            cell(item.cached_bytes)});
      schedule.clear();
      last_pass = item.pass;
    }
  }
  return table;
}

// A key block of a size, and the most rows beside it.
struct Fit {
  ScheduleChoice choice;
  double bytes = 0;
  Cost q_outside;
  Cost kv_outside;
};

std::vector<Fit> fits_of(const Explained& e) {
  std::vector<Fit> fits;
  int64_t longest = std::max<int64_t>(e.shape.kv_len, 8);
  for (const SequenceLengths& lengths : e.shape.sequences) {
    longest = std::max(longest, lengths.kv_len);
  }
  for (int64_t keys = 16; keys <= std::min<int64_t>(1024, 2 * longest); keys *= 2) {
    Fit fit;
    fit.choice = {Schedule::tiled_q_outside, e.accounting, 0, keys};
    fit.choice.tile_rows = largest_tile_rows(e.shape, fit.choice, e.machine.fast_bytes);
    if (fit.choice.tile_rows == 0) break;
    fit.bytes = working_set_bytes(e.shape, fit.choice);
    fit.q_outside = cost(e.shape, fit.choice, e.machine);
    fit.choice.schedule = Schedule::tiled_kv_outside;
    fit.kv_outside = cost(e.shape, fit.choice, e.machine);
    fits.push_back(std::move(fit));
  }
  return fits;
}

void print_fits(const Explained& e) {
  const std::vector<Fit> fits = fits_of(e);
  fmt::print(
      "\nTiles that fit into {} of fast memory: rows x d + keys x d + keys x dv + rows x keys "
      "+ rows x dv\n",
      bytes_text(e.machine.fast_bytes));
  if (fits.empty()) {
    fmt::print(
        "none: 16 keys and one row need {}\n",
        bytes_text(working_set_bytes(e.shape, {Schedule::tiled_q_outside, e.accounting, 1, 16})));
    return;
  }
  Table table{{">keys", ">most rows", ">takes", ">q outside: passes", ">traffic",
               ">k, v outside: passes", ">traffic"},
              {}};
  for (const Fit& fit : fits) {
    table.rows.push_back({std::to_string(fit.choice.tile_keys),
                          std::to_string(fit.choice.tile_rows), bytes_text(fit.bytes),
                          grouped(static_cast<double>(fit.q_outside.passes)),
                          decimal_bytes_text(fit.q_outside.bytes()),
                          grouped(static_cast<double>(fit.kv_outside.passes)),
                          decimal_bytes_text(fit.kv_outside.bytes())});
  }
  print_table(table, Format::text);
  fmt::print(
      "More rows: k and v are read fewer times. More keys: q and out are. They share the room, "
      "and\n"
      "what is taken whole leaves none for a second tile to load while one computes.\n");
}

// ---- words ----

void print_matrix(const Explained& e) {
  const double heads = static_cast<double>(e.shape.q_heads) *
                       static_cast<double>(e.shape.sequences.empty() ? e.shape.batch : 1);
  const Cost& c = e.standard();
  fmt::print("The score matrix has {} entries{}, {}", grouped(c.all_pairs / heads),
             heads > 1 ? " a head" : "", bytes_text(c.matrix_bytes / heads));
  if (heads > 1) fmt::print("; {} over all heads", bytes_text(c.matrix_bytes));
  fmt::print(". Inputs and outputs once are {}.\n", decimal_bytes_text(c.compulsory_bytes));
  if (c.visible_pairs < c.all_pairs) {
    fmt::print(
        "The mask shows {:.1f} % of it: {:.4g} useful FLOPs; standard does {:.4g}, tiles do "
        "{:.4g}.\n",
        100 * c.visible_pairs / c.all_pairs, c.useful_flops, c.executed_flops,
        e.best().executed_flops);
  }
}

std::string times_less(double standard, double tiled) {
  const double less = tiled > 0 ? standard / tiled : 1;
  if (less < 0.995) return fmt::format("{:.2f} times as much", 1 / less);
  return less < 1.05 ? "about as much"
                     : fmt::format("{:.{}f} times less", less, less < 100 ? 1 : 0);
}

void print_words(const Explained& e) {
  const Cost& standard = e.standard();
  const Cost& tiled = e.best();
  fmt::print("\nIn words\n");
  fmt::print(
      "  The machine does {:.0f} operations in the time it moves a byte. The softmax pass alone "
      "does {:.4g}.\n",
      e.machine.balance(), softmax_intensity(e.shape.dtype));
  fmt::print("  Standard attention computes for {} and moves {}, which takes {}: {}-bound.\n",
             seconds_text(standard.compute_s), decimal_bytes_text(standard.bytes()),
             seconds_text(standard.memory_s), name_of(standard.bound));
  fmt::print("  {} computes for {} and moves {}, {}: {} of traffic, {}-bound.\n",
             e.schedules[e.tiled] == Schedule::decode ? "Decode" : "Tiled attention",
             seconds_text(tiled.compute_s), decimal_bytes_text(tiled.bytes()),
             times_less(standard.bytes(), tiled.bytes()), seconds_text(tiled.memory_s),
             name_of(tiled.bound));
  const double gain = standard.seconds() / tiled.seconds();
  if (gain < 1.2) {
    fmt::print("  Little to gain in time: {:.2f} times at most.\n", std::max(1.0, gain));
  } else {
    fmt::print("  So tiling can be {:.1f} times faster here, and saves {} of memory.\n", gain,
               bytes_text(standard.extra_bytes - tiled.extra_bytes));
  }
  if (e.schedules[e.tiled] == Schedule::decode) {
    fmt::print(
        "  With so few rows there is no large matrix to avoid: the cache of k and v must be "
        "read\n  once, whatever is done. Smaller k and v (fewer heads, fewer bits) help.\n");
    return;
  }
  fmt::print(
      "  What tiling does not change: the result (the online softmax is exact) and the "
      "number of pairs:\n");
  AttentionShape twice = e.shape;
  twice.q_len *= 2;
  twice.kv_len *= 2;
  for (SequenceLengths& lengths : twice.sequences)
    lengths = {lengths.q_len * 2, lengths.kv_len * 2};
  const Cost a = cost(twice, {e.schedules[0], e.accounting}, e.machine);
  const Cost b = cost(twice, {e.schedules[e.tiled], e.accounting}, e.machine);
  fmt::print(
      "  at twice the length standard moves {}, tiled {}, and both compute {:.1f} times as "
      "long.\n",
      decimal_bytes_text(a.bytes()), decimal_bytes_text(b.bytes()), b.compute_s / tiled.compute_s);
}

void print_text(const Explained& e) {
  const MachineRoofs& m = e.machine;
  fmt::print("{}\n", print_case(e.text));
  fmt::print("on {}: {:.4g} TFLOP/s, {:.4g} TB/s, {} of fast memory a core", m.name,
             m.flops_per_s * 1e-12, m.bytes_per_s * 1e-12, bytes_text(m.fast_bytes));
  if (m.cores > 1) {
    fmt::print(", {} cores: {}", m.cores,
               decimal_bytes_text(m.fast_bytes * static_cast<double>(m.cores)));
  }
  if (m.cache_bytes > 0 && e.accounting == Accounting::full) {
    fmt::print(", {} of cache", bytes_text(m.cache_bytes));
  }
  fmt::print("\n");
  if (e.accounting == Accounting::simple) {
    fmt::print("counted as published: every number takes {} bytes; m, l and lse are left out\n",
               size_of(e.shape.dtype));
  }
  fmt::print("\n");
  print_matrix(e);
  fmt::print("\n");
  print_table(schedule_table(e), Format::text);
  print_words(e);
  fmt::print("\nTraffic by pass\n");
  print_table(traffic_table(e), Format::text);
  if (!e.backward) print_fits(e);
  const bool cached = e.machine.cache_bytes > 0 && e.accounting == Accounting::full;
  fmt::print("\n{} between slow and fast memory in this model; see docs/io-model.md.\n",
             cached ? "A cache that holds all of a set or nothing stands" : "No cache stands");
}

// ---- rows ----

Row schedule_row(const Explained& e, size_t i) {
  const Cost& c = e.costs[i];
  Row row;
  row.add("table", std::string("schedule")).add("case", print_case(e.text));
  row.add("machine", e.machine.name).add("schedule", std::string(name_of(e.schedules[i])));
  row.add("accounting", std::string(e.accounting == Accounting::simple ? "simple" : "full"));
  row.add("all_pairs", c.all_pairs).add("visible_pairs", c.visible_pairs);
  row.add("useful_flops", c.useful_flops).add("executed_flops", c.executed_flops);
  row.add("exps", c.exps)
      .add("bytes", c.bytes())
      .add("cached_bytes", c.cached_bytes)
      .add("compulsory_bytes", c.compulsory_bytes);
  row.add("matrix_bytes", c.matrix_bytes).add("extra_bytes", c.extra_bytes);
  row.add("intensity", c.intensity).add("balance", e.machine.balance());
  row.add("memory_us", c.memory_s * 1e6).add("compute_us", c.compute_s * 1e6);
  row.add("exp_us", c.exp_s * 1e6).add("bound", std::string(name_of(c.bound)));
  row.add("tile_rows", c.tile_rows).add("tile_keys", c.tile_keys).add("passes", c.passes);
  return row.add("working_set_bytes", c.working_set_bytes);
}

std::vector<Row> rows_of(const Explained& e) {
  std::vector<Row> rows;
  for (size_t i = 0; i < e.costs.size(); ++i) rows.push_back(schedule_row(e, i));
  for (size_t i = 0; i < e.costs.size(); ++i) {
    for (const Traffic& item : e.costs[i].traffic) {
      rows.emplace_back()
          .add("table", std::string("traffic"))
          .add("schedule", std::string(name_of(e.schedules[i])))
          .add("pass", item.pass)
          .add("tensor", item.tensor)
          .add("read_bytes", item.read_bytes)
          .add("write_bytes", item.write_bytes)
          .add("cached_bytes", item.cached_bytes);
    }
  }
  if (e.backward) return rows;
  for (const Fit& fit : fits_of(e)) {
    rows.emplace_back()
        .add("table", std::string("tile"))
        .add("fast_bytes", e.machine.fast_bytes)
        .add("tile_rows", fit.choice.tile_rows)
        .add("tile_keys", fit.choice.tile_keys)
        .add("working_set_bytes", fit.bytes)
        .add("q_outside_bytes", fit.q_outside.bytes())
        .add("kv_outside_bytes", fit.kv_outside.bytes());
  }
  return rows;
}

}  // namespace

int explain(const ExplainOptions& options) {
  if (options.scores) return explain_scores(options);
  const Explained e = explained(options);
  if (options.shared.format == Format::json) {
    print_json(options.shared.command, rows_of(e));
  } else if (options.shared.format == Format::csv) {
    print_csv(rows_of(e));
  } else {
    print_text(e);
  }
  return 0;
}

}  // namespace tilewise::cli
