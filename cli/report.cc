// Printing and reading of reports; the only file that includes the JSON library, because it
// compiles slowly.
#include "cli/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/machine.h"
#include "cli/tensor_file.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {

namespace {

using Json = nlohmann::ordered_json;

// Six digits are more than any measurement here has.
double shortened(double value) {
  if (!std::isfinite(value) || value == 0) return value;
  return std::stod(fmt::format("{:.6g}", value));
}

Json json_of(const Value& value) {
  return std::visit(
      [](const auto& v) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, double>) {
          // JSON has no infinity or NaN.
          if (!std::isfinite(v)) return fmt::format("{}", v);
          return shortened(v);
        } else {
          return v;
        }
      },
      value);
}

Json machine_json(const Machine& machine) {
  Json json = Json::object();
  json["cpu"] = machine.cpu;
  json["cores"] = machine.cores;
  json["isa"] = machine.isa;
  json["memory_bytes"] = machine.memory_bytes;
  json["system"] = machine.system;
  return json;
}

Value value_of(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  return json.is_string() ? json.get<std::string>() : json.dump();
}

Row row_of(const Json& json) {
  Row row;
  for (const auto& [key, value] : json.items()) row.add(key, value_of(value));
  return row;
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string text_of(const Value& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, bool>) return v ? "1" : "0";
        if constexpr (std::is_same_v<T, std::string>) return v;
        if constexpr (std::is_same_v<T, double>) return fmt::format("{:.6g}", v);
        if constexpr (std::is_same_v<T, int64_t>) return std::to_string(v);
      },
      value);
}

// Columns on a terminal, not bytes: continuation bytes of UTF-8 take none.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string padded(const std::string& text, size_t width, bool right) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return right ? space + text : text + space;
}

}  // namespace

std::string one_line(const std::string& message) {
  std::string line = message.starts_with("tilewise::") ? message.substr(10) : message;
  for (size_t at = line.find('\n'); at != std::string::npos; at = line.find('\n', at)) {
    const size_t next = std::min(line.find_first_not_of(" \n", at), line.size());
    line.replace(at, next - at, next == line.size() ? "" : "; ");
  }
  return line;
}

void print_json(const std::string& command, const std::vector<Row>& rows) {
  const Machine machine = read_machine();
  Json json = Json::object();
  json["schema"] = 1;
  json["machine"] = machine_json(machine);
  json["versions"] = {{"tilewise", std::string(version())}, {"compiler", machine.compiler}};
  json["commit"] = machine.commit;
  json["command"] = command;
  json["date"] = utc_date();
  json["rows"] = Json::array();
  for (const Row& row : rows) {
    Json object = Json::object();
    for (const auto& [key, value] : row.fields) object[key] = json_of(value);
    json["rows"].push_back(std::move(object));
  }
  fmt::print("{}\n", json.dump(1, ' ', false, Json::error_handler_t::replace));
}

Report read_report(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw InputError(path + ": cannot be read");
  const Json json = Json::parse(file, nullptr, false);
  if (!json.is_object() || json.value("schema", 0) != 1 || !json.contains("rows")) {
    throw InputError(path + ": is no result file, expected what --json prints (schema 1)");
  }
  Report report{json.value("command", ""), json.value("date", ""), {}};
  for (const Json& row : json["rows"]) report.rows.push_back(row_of(row));
  return report;
}

void print_csv(const std::vector<Row>& rows) {
  std::vector<std::string> keys;
  for (const Row& row : rows) {
    for (const auto& [key, value] : row.fields) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  }
  fmt::print("{}\n", fmt::join(keys, ","));
  for (const Row& row : rows) {
    std::vector<std::string> cells(keys.size());
    for (const auto& [key, value] : row.fields) {
      const auto column = std::find(keys.begin(), keys.end(), key) - keys.begin();
      cells[static_cast<size_t>(column)] = csv_cell(text_of(value));
    }
    fmt::print("{}\n", fmt::join(cells, ","));
  }
}

void print_table(const Table& table, Format format) {
  const bool markdown = format == Format::markdown;
  std::vector<std::string> headings;
  std::vector<bool> right;
  std::vector<size_t> widths;
  for (const std::string& heading : table.headings) {
    right.push_back(heading.starts_with(">"));
    headings.push_back(right.back() ? heading.substr(1) : heading);
    widths.push_back(width_of(headings.back()));
  }
  for (const auto& row : table.rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  const auto print_row = [&](const std::vector<std::string>& cells) {
    std::string line = markdown ? "| " : "";
    for (size_t c = 0; c < cells.size(); ++c) {
      if (c > 0) line += markdown ? " | " : "  ";
      line += padded(cells[c], widths[c], right[c]);
    }
    if (markdown) line += " |";
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  };
  print_row(headings);
  if (markdown) {
    std::string line = "|";
    for (size_t c = 0; c < widths.size(); ++c) {
      line += std::string(widths[c] + 1, '-') + (right[c] ? ":|" : "-|");
    }
    fmt::print("{}\n", line);
  }
  for (const auto& row : table.rows) print_row(row);
}

}  // namespace tilewise::cli
