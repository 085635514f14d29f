// Tensor files: what is written is read back; what is wrong is refused with a message that says
// what was found and what was expected; refusing takes no memory and leaves nothing behind.
#include "cli/tensor_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/cli/temporary.h"

namespace tilewise::cli {
namespace {

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  return text;
}

std::string safetensors(const std::string& header, size_t data_bytes) {
  return little_endian(header.size(), 8) + header + std::string(data_bytes, '\0');
}

std::string npy(const std::string& header, size_t data_bytes, int version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  return bytes + little_endian(header.size(), version == 1 ? 2 : 4) + header +
         std::string(data_bytes, '\0');
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape +
         "],\"data_offsets\":[" + offsets + "]}";
}

// "" when the file is accepted, else the message after the file's name.
std::string refusal(const std::string& name, const std::string& bytes) {
  const TemporaryFolder folder;
  const std::string path = folder.write(name, bytes);
  try {
    const TensorFile file(path);
    return "";
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_TRUE(message.starts_with(path + ": ")) << message;
    return message.substr(std::min(path.size() + 2, message.size()));
  }
}

HostTensor counted(const std::string& name, DType dtype, std::vector<int64_t> shape) {
  HostTensor made(name, dtype, std::move(shape));
  for (uint64_t i = 0; i < made.bytes(); ++i) made.data()[i] = static_cast<std::byte>(i * 37 + 5);
  return made;
}

void expect_same(const HostTensor& a, const HostTensor& b) {
  EXPECT_EQ(a.dtype(), b.dtype());
  EXPECT_EQ(a.shape(), b.shape());
  ASSERT_EQ(a.bytes(), b.bytes());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0);
}

TEST(Safetensors, ReadsBackWhatItWrote) {
  const TemporaryFolder folder;
  const std::string path = folder.file("x.safetensors");
  const HostTensor q = counted("q", DType::bf16, {1, 3, 2, 5});
  const HostTensor lse = counted("lse", DType::f32, {7});
  const HostTensor empty = counted("empty", DType::f16, {0, 4});
  const HostTensor scalar = counted("scalar", DType::f32, {});
  const HostTensor* const all[] = {&q, &lse, &empty, &scalar};
  write_safetensors(path, all, {{"origin", "a \"test\"\n"}});
  EXPECT_EQ(contents(path).size() % 2, 0u);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x.safetensors"});
  const TensorFile file(path);
  EXPECT_EQ(file.tensors().size(), 4u);
  for (const HostTensor* made : all) expect_same(file.read(made->name()), *made);
}

TEST(Safetensors, ReplacesAFileWhole) {
  const TemporaryFolder folder;
  const std::string path = folder.write("x.safetensors", "an old file");
  const HostTensor q = counted("q", DType::f32, {2});
  const HostTensor* const all[] = {&q};
  write_safetensors(path, all, {});
  expect_same(TensorFile(path).read("q"), q);
}

TEST(Npy, ReadsBackWhatItWrote) {
  const TemporaryFolder folder;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{}, {3}, {2, 0}, {1, 7, 3, 8}}) {
      const HostTensor made = counted("x", dtype, shape);
      write_npy(folder.file("x.npy"), made);
      expect_same(TensorFile(folder.file("x.npy")).read("x"), made);
    }
  }
}

TEST(Npy, DataIsAlignedAndTheHeaderIsNumpys) {
  const TemporaryFolder folder;
  write_npy(folder.file("x.npy"), counted("x", DType::f32, {2, 3}));
  const std::string bytes = contents(folder.file("x.npy"));
  EXPECT_EQ((bytes.size() - 24) % 64, 0u);
  EXPECT_NE(bytes.find("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, ), }"),
            std::string::npos);
}

// What other writers make, too.
TEST(Safetensors, Accepts) {
  const std::string q = tensor("q", "F32", "2,3", "0,24");
  EXPECT_EQ(refusal("x.safetensors", safetensors("{}", 0)), "");
  EXPECT_EQ(refusal("x.safetensors", safetensors("{" + q + "}    ", 24)), "");
  EXPECT_EQ(refusal("x.safetensors",
                    safetensors("{ \"__metadata__\" : {\"a\": \"\\u00e9\\n\"}, " + q + " }", 24)),
            "");
  // Out of order; a type that only other programs compute with; a scalar; an empty tensor.
  EXPECT_EQ(refusal("x.safetensors", safetensors("{" + tensor("b", "I64", "1", "24,32") + "," + q +
                                                     "," + tensor("c", "U8", "", "32,33") + "," +
                                                     tensor("d", "BF16", "0,9", "33,33") + "}",
                                                 33)),
            "");
  const std::string smile = "\xf0\x9f\x98\x80";
  EXPECT_EQ(refusal("x.safetensors", safetensors("{" + tensor(smile, "F32", "1", "0,4") + "}", 4)),
            "");
}

struct BadFile {
  std::string what;
  std::string bytes;
  std::string message;
};

void expect_refusals(const std::string& name, const std::vector<BadFile>& files) {
  for (const BadFile& file : files) {
    SCOPED_TRACE(file.what);
    EXPECT_EQ(refusal(name, file.bytes), file.message);
  }
}

TEST(Safetensors, RefusesBadPrefixes) {
  const std::string ok = safetensors("{" + tensor("q", "F32", "1", "0,4") + "}", 4);
  expect_refusals(
      "x.safetensors",
      {{"empty", "", "is 0 bytes long, expected at least 8"},
       {"7 bytes", "\1\2\3\4\5\6\7", "is 7 bytes long, expected at least 8"},
       {"truncated header", ok.substr(0, 20),
        "header is 54 bytes long, the file has 12 after the prefix"},
       {"truncated data", ok.substr(0, ok.size() - 1),
        "tensor 'q': ends at byte 4, the file has 3 after its header"},
       {"header of 2^63", little_endian(uint64_t{1} << 63, 8) + "{}",
        "header is 9223372036854775808 bytes long, expected at most 100000000"},
       {"header of 100 MB + 1", little_endian(100000001, 8) + "{}",
        "header is 100000001 bytes long, expected at most 100000000"},
       {"no brace", safetensors(" {}", 0), "header does not start with '{'"},
       {"no header", little_endian(0, 8), "header does not start with '{'"},
       {"data after the last", ok + "x", "has 5 bytes after its header, its tensors cover 4"}});
}

TEST(Safetensors, RefusesBadSizes) {
  const auto file = [](const std::string& shape, const std::string& offsets, size_t data = 16) {
    return safetensors("{" + tensor("q", "F32", shape, offsets) + "}", data);
  };
  const std::string whole = ", expected a whole number from 0 to 2^63 - 1";
  expect_refusals(
      "x.safetensors",
      {{"wrong product", file("3", "0,16"),
        "tensor 'q': data_offsets hold 16 bytes, expected 12 (from shape [3] of F32)"},
       {"product overflows", file("4294967296,4294967296", "0,16"),
        "tensor 'q': shape [4294967296, 4294967296] has more bytes than 2^64"},
       {"product wraps to 16", file("4611686018427387908", "0,16"),
        "tensor 'q': shape [4611686018427387908] has more bytes than 2^64"},
       {"2^63", file("9223372036854775808", "0,16"),
        "tensor 'q': shape has 9223372036854775808" + whole},
       {"negative", file("-4", "0,16"), "tensor 'q': shape has -4" + whole},
       {"negative zero", file("-0", "0,0", 0), "tensor 'q': shape has -0" + whole},
       {"fraction", file("4.0", "0,16"), "tensor 'q': shape has 4.0" + whole},
       {"exponent", file("1e1", "0,16"), "tensor 'q': shape has 1e1" + whole},
       {"leading zero", file("04", "0,16"), "tensor 'q': shape has 04" + whole},
       {"9 dimensions", file("1,1,1,1,1,1,1,1,4", "0,16"),
        "tensor 'q': shape has more than 8 dimensions"},
       {"backwards", file("4", "16,0"),
        "tensor 'q': data_offsets are [16, 0], expected begin <= end"},
       {"outside", file("4", "16,32"),
        "tensor 'q': ends at byte 32, the file has 16 after its header"},
       {"end of 2^63 - 1", file("4", "9223372036854775791,9223372036854775807"),
        "tensor 'q': ends at byte 9223372036854775807, the file has 16 after its header"},
       {"one offset", file("4", "0"), "tensor 'q': data_offsets is not a pair of numbers"},
       {"three offsets", file("4", "0,16,16"),
        "tensor 'q': data_offsets is not a pair of numbers"}});
}

TEST(Safetensors, RefusesGapsAndOverlaps) {
  const auto pair = [](const std::string& a, const std::string& b, size_t data) {
    return safetensors("{" + tensor("a", "F32", "2", a) + "," + tensor("b", "F32", "2", b) + "}",
                       data);
  };
  expect_refusals("x.safetensors",
                  {{"overlap", pair("0,8", "4,12", 12),
                    "tensor 'b': begins at byte 4, expected 8 (it overlaps another)"},
                   {"the same bytes twice", pair("0,8", "0,8", 8),
                    "tensor 'b': begins at byte 0, expected 8 (it overlaps another)"},
                   {"gap", pair("0,8", "12,20", 20),
                    "tensor 'b': begins at byte 12, expected 8 (there is a gap)"},
                   {"gap at the front", pair("4,12", "12,20", 20),
                    "tensor 'a': begins at byte 4, expected 0 (there is a gap)"}});
}

TEST(Safetensors, RefusesBadText) {
  const std::string q = tensor("q", "F32", "1", "0,4");
  const std::string body = "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]";
  expect_refusals(
      "x.safetensors",
      {{"twice", safetensors("{" + q + "," + q + "}", 4), "has the tensor 'q' twice"},
       {"twice by escape",
        safetensors("{" + q + "," + tensor("\\u0071", "F32", "1", "0,4") + "}", 4),
        "has the tensor 'q' twice"},
       {"key twice", safetensors("{\"q\":{\"dtype\":\"F32\"," + body + "}}", 4),
        "tensor 'q': has 'dtype' twice"},
       {"metadata twice", safetensors("{\"__metadata__\":{},\"__metadata__\":{}," + q + "}", 4),
        "header has '__metadata__' twice"},
       {"metadata key twice",
        safetensors("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}," + q + "}", 4),
        "header has 'a' twice"},
       {"metadata number", safetensors("{\"__metadata__\":{\"a\":1}," + q + "}", 4),
        "header has '1' at byte 21, expected '\"'"},
       {"unknown key", safetensors("{\"q\":{\"strides\":[1]," + body + "}}", 4),
        "tensor 'q': key is 'strides', expected dtype, shape or data_offsets"},
       {"no shape", safetensors("{\"q\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4),
        "tensor 'q': has no shape"},
       {"unknown dtype", safetensors("{" + tensor("q", "F31", "1", "0,4") + "}", 4),
        "tensor 'q': dtype is 'F31', expected F32, BF16 or F16"},
       {"deep", safetensors("{\"q\":{\"shape\":[[1]]," + body + "}}", 4),
        "header has '[' at byte 15, expected a number"},
       {"trailing comma", safetensors("{" + q + ",}", 4),
        "header has '}' at byte 54, expected '\"'"},
       {"no comma", safetensors("{" + q + q + "}", 4),
        "header has '\"' at byte 53, expected ',' or '}'"},
       {"never ends", safetensors("{" + q, 4), "header ends at byte 53, expected ',' or '}'"},
       {"more after the end", safetensors("{" + q + "}x", 4),
        "header has 'x' at byte 54, expected its end"},
       {"bad UTF-8", safetensors("{" + tensor("\xc0\x80", "F32", "1", "0,4") + "}", 4),
        "header has '\\xc0' at byte 2, expected UTF-8"},
       {"UTF-8 surrogate", safetensors("{" + tensor("\xed\xa0\x80", "F32", "1", "0,4") + "}", 4),
        "header has '\\xed' at byte 2, expected UTF-8"},
       {"half a pair", safetensors("{" + tensor("\\ud800", "F32", "1", "0,4") + "}", 4),
        "header has '\"' at byte 8, expected the other half of a surrogate pair"},
       {"control character", safetensors("{" + tensor("a\nb", "F32", "1", "0,4") + "}", 4),
        "header has '\\x0a' at byte 3, expected no control character"}});
}

TEST(Safetensors, LimitsNames) {
  const std::string name(4097, 'x');
  EXPECT_EQ(refusal("x.safetensors", safetensors("{" + tensor(name, "F32", "1", "0,4") + "}", 4)),
            "header has a name longer than 4096 bytes");
}

TEST(Npy, Accepts) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  for (const int version : {1, 2, 3}) EXPECT_EQ(refusal("x.npy", npy(good, 24, version)), "");
  EXPECT_EQ(refusal("x.npy", npy("{\"shape\":(6,),\"descr\":\"<f2\",\"fortran_order\":False}", 12)),
            "");
  EXPECT_EQ(refusal("x.npy", npy("{'descr':'<u2','fortran_order':False,'shape':()}  \n", 2)), "");
}

TEST(Npy, Refuses) {
  const auto file = [](const std::string& descr, const std::string& order, const std::string& shape,
                       size_t data = 8) {
    return npy("{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + "}",
               data);
  };
  const std::string ok = file("'<f4'", "False", "(2,)");
  std::string version_four = ok;
  version_four[6] = 4;
  const std::string types = ", expected '<f4', '<f2' or '<u2' (the bits of bf16)";
  expect_refusals(
      "x.npy",
      {{"empty", "", "is not a .npy file (it does not start with \\x93NUMPY)"},
       {"other magic", "PK\3\4" + ok, "is not a .npy file (it does not start with \\x93NUMPY)"},
       {"version 4", version_four, ".npy version is 4.0, expected 1.0, 2.0 or 3.0"},
       {"truncated header", ok.substr(0, 40),
        "header is 55 bytes long, the file has 30 after the prefix"},
       {"truncated data", ok.substr(0, ok.size() - 1),
        "has 7 bytes of data, expected 8 (from shape [2] of '<f4')"},
       {"more data", ok + "x", "has 9 bytes of data, expected 8 (from shape [2] of '<f4')"},
       {"4 GB from 12 bytes", npy("", 0, 2).substr(0, 8) + "\xff\xff\xff\xff",
        "header is 4294967295 bytes long, expected at most 65536"},
       {"fortran", file("'<f4'", "True", "(2,)"),
        "fortran_order is True, expected False (numpy.ascontiguousarray)"},
       {"float64", file("'<f8'", "False", "(1,)"), "dtype is '<f8'" + types},
       {"big endian", file("'>f4'", "False", "(2,)"), "dtype is '>f4'" + types},
       {"object", file("'|O'", "False", "(1,)"), "dtype is '|O'" + types},
       {"structured", file("[('x', '<f4')]", "False", "(2,)"),
        "header has a structured dtype, expected '<f4'"},
       {"negative", file("'<f4'", "False", "(-2,)"), "header has a negative size in its shape"},
       {"2^63", file("'<f4'", "False", "(9223372036854775808,)"),
        "header has a size of 2^63 or more in its shape"},
       {"overflow", file("'<f4'", "False", "(4611686018427387906,)"),
        "shape [4611686018427387906] has more bytes than 2^64"},
       {"9 dimensions", file("'<f4'", "False", "(1,1,1,1,1,1,1,1,2)"),
        "header has a shape of more than 8 dimensions"},
       {"not a tuple", file("'<f4'", "False", "(2)"),
        "header has the shape (N), expected a tuple: (N,)"},
       {"an expression", file("'<f4'", "False", "(1+1,)"),
        "header has '+' at byte 52, expected ',' or ')'"},
       {"a call", file("'<f4'", "__import__('os')", "(2,)"),
        "header has '_' at byte 34, expected True or False"},
       {"underscore", file("'<f4'", "False", "(0_2,)"),
        "header has '_' at byte 52, expected ',' or ')'"},
       {"leading zero", file("'<f4'", "False", "(02,)"),
        "header has a size with a leading zero in its shape"},
       {"key twice", npy("{'descr':'<f4','descr':'<f4'}", 8), "header has the key 'descr' twice"},
       {"unknown key", npy("{'order':'C'}", 8),
        "header has the key 'order', expected descr, fortran_order, shape"},
       {"no shape", npy("{'descr':'<f4','fortran_order':False}", 8), "header has no key 'shape'"},
       {"never ends", npy("{'descr':'<f4'", 8), "header ends at byte 14, expected '}'"},
       {"long word", npy("{'" + std::string(100, 'a') + "':1}", 8),
        "header has a quoted word that is longer than 64 bytes or never ends"},
       {"more after", npy("{'descr':'<f4','fortran_order':False,'shape':(2,)}x", 8),
        "header goes on after its closing brace"}});
}

TEST(TensorFile, NamesWhatIsMissing) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("x.safetensors", safetensors("{" + tensor("k", "I32", "1", "0,4") + "}", 4));
  const TensorFile file(path);
  const auto message = [&](const char* name) -> std::string {
    try {
      file.read(name);
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(message("q"), path + ": has no tensor 'q', it has k");
  EXPECT_EQ(message("k"), path + ": tensor 'k': dtype is I32, expected F32, BF16 or F16");
}

TEST(TensorFile, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("x.npy"));
  EXPECT_THROW(TensorFile(folder.file("x.npy")), InputError);
  EXPECT_THROW(TensorFile(folder.file("none.npy")), InputError);
  EXPECT_THROW(TensorFile(folder.file("x.pt")), InputError);
}

TEST(TensorFile, LeavesNothingWhenItCannotWrite) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("x.npy"));
  const HostTensor made = counted("x", DType::f32, {2});
  EXPECT_THROW(write_npy(folder.file("x.npy"), made), InputError);
  EXPECT_THROW(write_npy(folder.file("no/such/x.npy"), made), InputError);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x.npy"});
}

// Every prefix and every changed byte of a good file is accepted or refused, never more.
TEST(TensorFile, SurvivesDamage) {
  const std::string headers[] = {
      safetensors(
          "{\"__metadata__\":{\"a\":\"\\u00e9\"}," + tensor("q", "BF16", "2,3", "0,12") + "}", 12),
      npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 24)};
  for (const bool is_npy : {false, true}) {
    const std::string& good = headers[is_npy ? 1 : 0];
    const auto try_bytes = [&](const std::string& bytes) {
      const auto span = std::as_bytes(std::span<const char>(bytes.data(), bytes.size()));
      try {
        const auto start = span.first(std::min<size_t>(12, span.size()));
        const uint64_t header = is_npy ? npy_header_bytes("x", start, bytes.size())
                                       : safetensors_header_bytes("x", start, bytes.size());
        ASSERT_LE(header, bytes.size());
        const auto tensors = is_npy ? index_npy("x", span.first(header), bytes.size())
                                    : index_safetensors("x", span.first(header), bytes.size());
        for (const TensorEntry& entry : tensors) {
          ASSERT_LE(entry.offset + entry.bytes, bytes.size());
        }
      } catch (const InputError&) {
      }
    };
    for (size_t at = 0; at < good.size(); ++at) {
      try_bytes(good.substr(0, at));
      for (int value = 0; value < 256; ++value) {
        std::string bytes = good;
        bytes[at] = static_cast<char>(value);
        try_bytes(bytes);
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::cli
