// The Case text: one table of keys serves the parser, the printer and the error messages.
// docs/case.md is its grammar.
#include "case/case.h"

#include <algorithm>
#include <limits>

#include "case/suggest.h"
#include "case/values.h"
#include "error.h"

namespace tilewise {

namespace {

constexpr std::string_view kLayouts[] = {"bshd", "bhsd", "packed_qkv", "strided"};
constexpr std::string_view kData[] = {"normal", "large", "outlier", "equal", "zeros"};
constexpr std::string_view kGradients[] = {"dq", "dk", "dv", "dsink"};
constexpr std::string_view kNotYet[] = {"page", "kv_dtype", "q_scale", "k_scale", "v_scale"};

using Value = std::string_view;

DType read_dtype(Value value) {
  constexpr std::string_view kWords[] = {"fp32", "bf16", "fp16"};
  constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16};
  if (value.starts_with("fp8")) {
    throw Error(Status::unsupported, "case: dtype=fp8 is not supported yet");
  }
  return kTypes[read_word("dtype", value, kWords)];
}

Direction read_direction(Value value) {
  constexpr std::string_view kWords[] = {"fwd", "bwd"};
  if (value == "decode") refuse_value("dir", value, "fwd: decode is a forward with a small q");
  return read_word("dir", value, kWords) == 0 ? Direction::forward : Direction::backward;
}

void read_data(Case& c, Value value) {
  constexpr std::string_view kFile = "file:";
  if (value.starts_with(kFile) && value.size() > kFile.size()) {
    c.data = CaseData::file;
    c.file = value.substr(kFile.size());
    return;
  }
  c.data = static_cast<CaseData>(read_word("data", value, kData));
}

void read_want(Case& c, Value value) {
  std::vector<bool> wanted(std::size(kGradients));
  for (const Value word : split(value, ',')) wanted[read_word("want", word, kGradients)] = true;
  c.want.clear();
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i]) c.want.emplace_back(kGradients[i]);
  }
}

std::string print_data(const Case& c) {
  if (c.data == CaseData::file) return "file:" + c.file;
  return c.data == CaseData::normal ? "" : std::string(kData[static_cast<size_t>(c.data)]);
}

std::string print_want(const Case& c) {
  std::string text;
  for (const std::string& name : c.want) text += (text.empty() ? "" : ",") + name;
  return text;
}

std::string unless(bool is_default, std::string text) { return is_default ? "" : text; }
std::string flag_unless(bool is_default, bool value) {
  return is_default ? "" : (value ? "1" : "0");
}

// read: from the text after '='. print: that text, "" where it is the default.
struct Key {
  std::string_view name;
  void (*read)(Case& c, Value value);
  std::string (*print)(const Case& c);
};

constexpr Key kKeys[] = {
    {"b", [](Case& c, Value v) { c.b = read_integer("b", v, 0); },
     [](const Case& c) { return unless(c.packed(), std::to_string(c.b)); }},
    {"hq", [](Case& c, Value v) { c.hq = read_integer("hq", v, 0); },
     [](const Case& c) { return std::to_string(c.hq); }},
    {"hkv", [](Case& c, Value v) { c.hkv = read_integer("hkv", v, 0); },
     [](const Case& c) { return unless(c.hkv == c.hq, std::to_string(c.hkv)); }},
    {"q", [](Case& c, Value v) { c.q = read_integer("q", v, 0); },
     [](const Case& c) { return unless(c.packed(), std::to_string(c.q)); }},
    {"kv", [](Case& c, Value v) { c.kv = read_integer("kv", v, 0); },
     [](const Case& c) { return unless(c.packed() || c.kv == c.q, std::to_string(c.kv)); }},
    {"qlens", [](Case& c, Value v) { c.qlens = read_lengths("qlens", v); },
     [](const Case& c) { return print_lengths(c.qlens); }},
    {"kvlens", [](Case& c, Value v) { c.kvlens = read_lengths("kvlens", v); },
     [](const Case& c) { return unless(c.kvlens == c.qlens, print_lengths(c.kvlens)); }},
    {"d", [](Case& c, Value v) { c.d = read_integer("d", v, 0); },
     [](const Case& c) { return std::to_string(c.d); }},
    {"dv", [](Case& c, Value v) { c.dv = read_integer("dv", v, 0); },
     [](const Case& c) { return unless(c.dv == c.d, std::to_string(c.dv)); }},
    {"mask", [](Case& c, Value v) { c.mask = read_mask(v); },
     [](const Case& c) { return unless(c.mask == Mask::none(), print_mask(c.mask)); }},
    {"dtype", [](Case& c, Value v) { c.dtype = read_dtype(v); },
     [](const Case& c) { return unless(c.dtype == DType::f32, std::string(name_of(c.dtype))); }},
    {"dir", [](Case& c, Value v) { c.dir = read_direction(v); },
     [](const Case& c) { return unless(c.dir == Direction::forward, "bwd"); }},
    {"scale",
     [](Case& c, Value v) {
       c.scale = read_number("scale", v);  // 0 stands for the default
       if (c.scale == 0) refuse_value("scale", v, "a number > 0");
     },
     [](const Case& c) { return unless(c.scale == 0, print_number(c.scale)); }},
    {"softcap", [](Case& c, Value v) { c.softcap = read_number("softcap", v); },
     [](const Case& c) { return unless(c.softcap == 0, print_number(c.softcap)); }},
    {"alibi",
     [](Case& c, Value v) { c.alibi = static_cast<CaseSlopes>(read_unsigned("alibi", v, 2)); },
     [](const Case& c) {
       return unless(c.alibi == CaseSlopes::none, std::to_string(static_cast<int>(c.alibi)));
     }},
    {"sink", [](Case& c, Value v) { c.sink = read_flag("sink", v); },
     [](const Case& c) { return flag_unless(!c.sink, c.sink); }},
    {"dropout", [](Case& c, Value v) { c.dropout = read_number("dropout", v); },
     [](const Case& c) { return unless(c.dropout == 0, print_number(c.dropout)); }},
    {"dropout_offset",
     [](Case& c, Value v) {
       c.dropout_offset = static_cast<uint32_t>(read_unsigned("dropout_offset", v, UINT32_MAX));
     },
     [](const Case& c) { return unless(c.dropout_offset == 0, std::to_string(c.dropout_offset)); }},
    {"seed", [](Case& c, Value v) { c.seed = read_unsigned("seed", v, UINT64_MAX); },
     [](const Case& c) { return unless(c.seed == 0, std::to_string(c.seed)); }},
    {"layout",
     [](Case& c, Value v) { c.layout = static_cast<CaseLayout>(read_word("layout", v, kLayouts)); },
     [](const Case& c) {
       return unless(c.layout == CaseLayout::bshd,
                     std::string(kLayouts[static_cast<size_t>(c.layout)]));
     }},
    {"data", read_data, print_data},
    {"deterministic", [](Case& c, Value v) { c.deterministic = read_flag("deterministic", v); },
     [](const Case& c) { return flag_unless(!c.deterministic, c.deterministic); }},
    {"lse", [](Case& c, Value v) { c.lse = read_flag("lse", v); },
     [](const Case& c) { return flag_unless(c.lse, c.lse); }},
    {"dlse", [](Case& c, Value v) { c.dlse = read_flag("dlse", v); },
     [](const Case& c) { return flag_unless(!c.dlse, c.dlse); }},
    {"want", read_want, print_want},
};

[[noreturn]] void refuse_word(std::string_view word, std::string_view why) {
  throw Error(Status::invalid_argument, "case: \"" + std::string(word) + "\": " + std::string(why));
}

const Key& find_key(std::string_view word, std::string_view name) {
  std::vector<std::string_view> names;
  for (const Key& key : kKeys) {
    if (key.name == name) return key;
    names.push_back(key.name);
  }
  if (std::find(std::begin(kNotYet), std::end(kNotYet), name) != std::end(kNotYet)) {
    throw Error(Status::unsupported, "case: " + std::string(name) + " is not supported yet");
  }
  refuse_word(word, "unknown key \"" + std::string(name) + '"' + suggestion(name, names));
}

using Given = std::vector<std::string_view>;

bool has(const Given& given, std::string_view key) {
  return std::find(given.begin(), given.end(), key) != given.end();
}

void fill_lengths(Case& c, const Given& given) {
  if (!c.packed()) {
    if (!has(given, "q")) throw_invalid("case", "q", "not given", "a length, as in q=1024", "");
    if (has(given, "kvlens")) throw_invalid("case", "kvlens", "given", "nothing", "no qlens");
    if (!has(given, "kv")) c.kv = c.q;
    return;
  }
  for (const std::string_view key : {"b", "q", "kv"}) {
    if (has(given, key)) throw_invalid("case", key, "given", "nothing", "qlens are given");
  }
  if (!has(given, "kvlens")) c.kvlens = c.qlens;
  if (c.kvlens.size() != c.qlens.size()) {
    throw_invalid("case", "kvlens", std::to_string(c.kvlens.size()) + " lengths",
                  std::to_string(c.qlens.size()), "qlens");
  }
  c.b = static_cast<int64_t>(c.qlens.size());
  c.q = *std::max_element(c.qlens.begin(), c.qlens.end());
  c.kv = *std::max_element(c.kvlens.begin(), c.kvlens.end());
}

// The rules that options and shapes alone do not show; check() holds all the others.
void check_case(const Case& c) {
  if (c.layout == CaseLayout::packed_qkv) {
    if (c.kv != c.q || c.kvlens != c.qlens) {
      throw_invalid("case", "kv", "not q", "the same", "layout=packed_qkv");
    }
    if (c.dv != c.d) throw_invalid("case", "dv", std::to_string(c.dv), std::to_string(c.d), "d");
  }
  if (c.dir == Direction::forward) {
    if (!c.want.empty()) throw_invalid("case", "want", "given", "nothing", "dir=fwd");
    if (c.dlse) throw_invalid("case", "dlse", "1", "0", "dir=fwd");
  } else if (!c.lse) {
    throw_invalid("case", "lse", "0", "1", "dir=bwd");
  }
  const bool wants_sink = std::find(c.want.begin(), c.want.end(), "dsink") != c.want.end();
  if (wants_sink && !c.sink) throw_invalid("case", "sink", "0", "1", "want=dsink");
}

}  // namespace

Case parse_case(std::string_view text) {
  Case c;
  Given given;
  constexpr std::string_view kSpaces = " \t\r\n";
  for (size_t at = text.find_first_not_of(kSpaces); at != std::string_view::npos;
       at = text.find_first_not_of(kSpaces, at)) {
    const size_t end = std::min(text.find_first_of(kSpaces, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    at = end;
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) refuse_word(word, "expected key=value");
    const Key& key = find_key(word, word.substr(0, equals));
    if (has(given, key.name)) refuse_word(word, "the key is given twice");
    key.read(c, word.substr(equals + 1));
    given.push_back(key.name);
  }
  if (!has(given, "d")) throw_invalid("case", "d", "not given", "a head_dim, as in d=64", "");
  if (!has(given, "hkv")) c.hkv = c.hq;
  if (!has(given, "dv")) c.dv = c.d;
  fill_lengths(c, given);
  check_case(c);
  return c;
}

std::string print_case(const Case& c) {
  std::string text;
  for (const Key& key : kKeys) {
    const std::string value = key.print(c);
    if (value.empty()) continue;
    if (!text.empty()) text += ' ';
    text.append(key.name).append("=").append(value);
  }
  return text;
}

Options options_of(const Case& c) {
  Options options;
  options.mask = c.mask;
  if (c.scale != 0) options.scale = c.scale;
  options.softcap = c.softcap;
  options.dropout = c.dropout;
  options.seed = c.seed;
  options.dropout_offset = c.dropout_offset;
  options.determinism = c.deterministic ? Determinism::bitwise : Determinism::any;
  if (c.packed()) {
    options.max_q_len = c.q;
    options.max_kv_len = c.kv;
  }
  return options;
}

}  // namespace tilewise
