// What a verb found, in the form asked for: a text or Markdown table for people, CSV, or one JSON
// object {schema, machine, versions, commit, command, date, rows} as in bench/results.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tilewise::cli {

enum class Format { text, json, csv, markdown };

using Value = std::variant<bool, int64_t, double, std::string>;

// Fields in the order they are printed; a row leaves out what does not apply.
struct Row {
  std::vector<std::pair<std::string, Value>> fields;
  Row& add(std::string key, Value value) {
    fields.emplace_back(std::move(key), std::move(value));
    return *this;
  }
  // nullptr: the row has no such field.
  const Value* find(const std::string& key) const {
    for (const auto& [name, value] : fields) {
      if (name == key) return &value;
    }
    return nullptr;
  }
};

// Writes the rows to stdout as JSON or CSV.
void print_json(const std::string& command, const std::vector<Row>& rows);
void print_csv(const std::vector<Row>& rows);

// What print_json wrote, to draw from it again. Throws InputError for any other file.
struct Report {
  std::string command;
  std::string date;
  std::vector<Row> rows;
};
Report read_report(const std::string& path);

// Cells as text. Columns whose heading starts with '>' are aligned to the right.
struct Table {
  std::vector<std::string> headings;
  std::vector<std::vector<std::string>> rows;
};
void print_table(const Table& table, Format format);

// A message of the library in one line, without the C++ scope of its operations.
std::string one_line(const std::string& message);

}  // namespace tilewise::cli
