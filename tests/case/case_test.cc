// The Case text: what reads, what prints, and what each mistake says.
#include "case/case.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>

namespace tilewise {
namespace {

TEST(CaseText, DefaultsFollowTheSizes) {
  const Case c = parse_case("hq=8 q=1024 d=128");
  EXPECT_EQ(c.b, 1);
  EXPECT_EQ(c.hkv, 8);
  EXPECT_EQ(c.kv, 1024);
  EXPECT_EQ(c.dv, 128);
  EXPECT_EQ(c.mask, Mask::none());
  EXPECT_EQ(c.dtype, DType::f32);
  EXPECT_EQ(c.dir, Direction::forward);
  EXPECT_TRUE(c.lse);
}

TEST(CaseText, PrintsInCanonicalOrderWithoutDefaults) {
  EXPECT_EQ(print_case(parse_case("dir=bwd  d=128\tdtype=bf16 mask=causal kv=1024 q=1024 hkv=2 "
                                  "hq=8 b=2 layout=bshd seed=0 lse=1")),
            "b=2 hq=8 hkv=2 q=1024 d=128 mask=causal dtype=bf16 dir=bwd");
  EXPECT_EQ(print_case(parse_case("qlens=3,0,9 kvlens=4,4,0 d=7 dv=9 scale=0.125 dropout=0.1")),
            "hq=1 qlens=3,0,9 kvlens=4,4,0 d=7 dv=9 scale=0.125 dropout=0.1");
  EXPECT_EQ(print_case(parse_case("q=5 d=64 data=file:long_text want=dv,dq dir=bwd sink=1")),
            "b=1 hq=1 q=5 d=64 dir=bwd sink=1 data=file:long_text want=dq,dv");
}

TEST(CaseText, PackedSizesFollowTheLengths) {
  const Case c = parse_case("qlens=3,0,9 kvlens=4,14,0 d=8");
  EXPECT_TRUE(c.packed());
  EXPECT_EQ(c.b, 3);
  EXPECT_EQ(c.q, 9);
  EXPECT_EQ(c.kv, 14);
  EXPECT_EQ(options_of(c).max_q_len, 9);
  EXPECT_EQ(options_of(c).max_kv_len, 14);
}

TEST(CaseText, EveryMaskHasAText) {
  const std::pair<const char*, Mask> masks[] = {
      {"none", Mask::none()},
      {"causal", Mask::causal()},
      {"causal_top_left", Mask::causal(Alignment::top_left)},
      {"causal:-3", Mask::causal_at(-3)},
      {"causal:0", Mask::causal_at(0)},
      {"window:127:0", Mask::window(127, 0)},
      {"window:-1:4", Mask::window(-1, 4)},
      {"window:3:5:-7", {3, 5, Alignment::at_offset, -7}},
      {"window:-1:-1:2", {-1, -1, Alignment::at_offset, 2}},
      {"window_top_left:3:5", {3, 5, Alignment::top_left, 0}},
      {"window_top_left:-1:-1", {-1, -1, Alignment::top_left, 0}},
      {"window:9223372036854775807:2147483647", Mask::window(INT64_MAX, INT32_MAX)},
  };
  for (const auto& [text, mask] : masks) {
    const Case c = parse_case("q=5 d=4 mask=" + std::string(text));
    EXPECT_EQ(c.mask, mask) << text;
    EXPECT_EQ(parse_case(print_case(c)).mask, mask) << text;
  }
  // A causal window is the same rule as causal, and prints as such.
  EXPECT_EQ(print_case(parse_case("q=5 d=4 mask=window:-1:0")), "b=1 hq=1 q=5 d=4 mask=causal");
}

Case arbitrary_case() {
  using namespace rc;  // NOLINT(google-build-using-namespace)
  Case c;
  const bool packed = *gen::arbitrary<bool>();
  c.hq = *gen::inRange<int64_t>(0, 200);
  c.hkv = *gen::inRange<int64_t>(0, 200);
  c.d = *gen::inRange<int64_t>(0, 300);
  c.dv = *gen::inRange<int64_t>(0, 300);
  if (packed) {
    const auto count = *gen::inRange<size_t>(1, 6);
    c.qlens = *gen::container<std::vector<int64_t>>(count, gen::inRange<int64_t>(0, 1 << 20));
    c.kvlens = *gen::container<std::vector<int64_t>>(count, gen::inRange<int64_t>(0, 1 << 20));
    c.b = static_cast<int64_t>(count);
    c.q = *std::max_element(c.qlens.begin(), c.qlens.end());
    c.kv = *std::max_element(c.kvlens.begin(), c.kvlens.end());
  } else {
    c.b = *gen::inRange<int64_t>(0, 1 << 20);
    c.q = *gen::inRange<int64_t>(0, 1LL << 40);
    c.kv = *gen::inRange<int64_t>(0, 1LL << 40);
  }
  c.mask.left = *gen::inRange<int64_t>(-1, 1000);
  c.mask.right = *gen::inRange<int64_t>(-1, 1000);
  c.mask.alignment =
      *gen::element(Alignment::bottom_right, Alignment::top_left, Alignment::at_offset);
  if (c.mask.alignment == Alignment::at_offset) c.mask.offset = *gen::arbitrary<int64_t>();
  c.dtype = *gen::element(DType::f32, DType::bf16, DType::f16);
  c.softcap = *gen::element(0.0, 30.0, 0.1, 1e-300);
  c.scale = *gen::element(0.0, 0.125, 1.0 / 3, -2.5);
  c.alibi = *gen::element(CaseSlopes::none, CaseSlopes::per_head, CaseSlopes::per_batch_head);
  c.sink = *gen::arbitrary<bool>();
  c.dropout = *gen::element(0.0, 0.1, 0.999999);
  c.dropout_offset = *gen::arbitrary<uint32_t>();
  c.seed = *gen::arbitrary<uint64_t>();
  c.layout = *gen::element(CaseLayout::bshd, CaseLayout::bhsd, CaseLayout::strided);
  c.data = *gen::element(CaseData::normal, CaseData::large, CaseData::outlier, CaseData::equal,
                         CaseData::zeros, CaseData::file);
  if (c.data == CaseData::file) c.file = "smollm2:layer.3";
  c.deterministic = *gen::arbitrary<bool>();
  if (*gen::arbitrary<bool>()) {
    c.dir = Direction::backward;
    c.dlse = *gen::arbitrary<bool>();
    for (const char* gradient : {"dq", "dk", "dv"}) {
      if (*gen::arbitrary<bool>()) c.want.emplace_back(gradient);
    }
    if (c.sink && *gen::arbitrary<bool>()) c.want.emplace_back("dsink");
  } else {
    c.lse = *gen::arbitrary<bool>();
  }
  return c;
}

TEST(CaseText, PrintedCasesReadBackEqual) {
  EXPECT_TRUE(rc::check("parse(print(c)) == c", [] {
    const Case c = arbitrary_case();
    const std::string text = print_case(c);
    RC_LOG() << text << "\n";
    const Case again = parse_case(text);
    RC_ASSERT(again == c);
    RC_ASSERT(print_case(again) == text);
  }));
}

// Whatever the bytes: a Case or an Error, never anything else.
TEST(CaseText, AnyTextIsReadOrRefused) {
  EXPECT_TRUE(rc::check("parse(text) returns or throws Error", [] {
    const auto words = *rc::gen::container<std::vector<std::string>>(rc::gen::oneOf(
        rc::gen::element<std::string>("q=", "d=4", "mask=window:", ":", "=", "q=4", "qlens=1,2",
                                      "1,,2", "kv=-1", "scale=nan", "want=dq", "data=file:"),
        rc::gen::arbitrary<std::string>()));
    std::string text;
    for (const std::string& word : words) text += word + (text.size() % 3 == 0 ? " " : "");
    try {
      const Case c = parse_case(text);
      RC_ASSERT(parse_case(print_case(c)) == c);
    } catch (const Error& error) {
      RC_ASSERT(std::string(error.what()).starts_with("case: "));
    }
  }));
}

struct Mistake {
  const char* text;
  const char* message;
};

TEST(CaseText, MistakesSayWhatWasExpected) {
  const Mistake mistakes[] = {
      {"", "case: d is not given, expected a head_dim, as in d=64"},
      {"d=64", "case: q is not given, expected a length, as in q=1024"},
      {"q=64", "case: d is not given, expected a head_dim, as in d=64"},
      {"q=64 d", "case: \"d\": expected key=value"},
      {"q=64 d=64 q=3", "case: \"q=3\": the key is given twice"},
      {"q=64 d=64 maks=causal",
       "case: \"maks=causal\": unknown key \"maks\", did you mean \"mask\"?"},
      {"q=64 d=64 softcp=3",
       "case: \"softcp=3\": unknown key \"softcp\", did you mean \"softcap\"?"},
      {"q=64 d=64 zebra=1", "case: \"zebra=1\": unknown key \"zebra\""},
      {"q=64 d=64 =1", "case: \"=1\": unknown key \"\""},
      {"q=64x d=64", "case: q is \"64x\", expected a whole number of 0 or more"},
      {"q=-1 d=64", "case: q is \"-1\", expected a whole number of 0 or more"},
      {"q= d=64", "case: q is \"\", expected a whole number of 0 or more"},
      {"q=9223372036854775808 d=64",
       "case: q is \"9223372036854775808\", expected a whole number of 0 or more"},
      {"q=4 d=4 mask=casual",
       "case: mask is \"casual\", expected none, causal, causal_top_left, causal:OFFSET, "
       "window:LEFT:RIGHT, window:LEFT:RIGHT:OFFSET or window_top_left:LEFT:RIGHT, did you mean "
       "\"causal\"?"},
      {"q=4 d=4 dtype=fp23",
       "case: dtype is \"fp23\", expected one of fp32, bf16, fp16, did you mean \"fp32\"?"},
      {"q=4 d=4 dtype=fp8", "case: dtype=fp8 is not supported yet"},
      {"q=4 d=4 page=16", "case: page is not supported yet"},
      {"q=4 d=4 kv_dtype=fp8", "case: kv_dtype is not supported yet"},
      {"q=4 d=4 dir=decode",
       "case: dir is \"decode\", expected fwd: decode is a forward with a small q"},
      {"q=4 d=4 dir=back", "case: dir is \"back\", expected one of fwd, bwd"},
      {"q=4 d=4 scale=inf", "case: scale is \"inf\", expected a finite number"},
      {"q=4 d=4 scale=0", "case: scale is \"0\", expected a number > 0"},
      {"q=4 d=4 sink=yes", "case: sink is \"yes\", expected 0 or 1"},
      {"q=4 d=4 alibi=3", "case: alibi is \"3\", expected a whole number from 0 to 2"},
      {"q=4 d=4 layout=bsdh",
       "case: layout is \"bsdh\", expected one of bshd, bhsd, packed_qkv, strided, did you mean "
       "\"bshd\"?"},
      {"q=4 d=4 data=file:",
       "case: data is \"file:\", expected one of normal, large, outlier, equal, zeros"},
      {"qlens=1,2 q=4 d=4", "case: q is given, expected nothing (from qlens are given)"},
      {"qlens=1,2 kvlens=3 d=4", "case: kvlens is 1 lengths, expected 2 (from qlens)"},
      {"q=3 kvlens=3 d=4", "case: kvlens is given, expected nothing (from no qlens)"},
      {"qlens=1,,2 d=4",
       "case: qlens is \"1,,2\", expected lengths of 0 or more, as in qlens=64,0,17"},
      {"q=4 kv=5 d=4 layout=packed_qkv",
       "case: kv is not q, expected the same (from layout=packed_qkv)"},
      {"q=4 d=4 want=dq", "case: want is given, expected nothing (from dir=fwd)"},
      {"q=4 d=4 dir=bwd want=dx",
       "case: want is \"dx\", expected one of dq, dk, dv, dsink, did you mean \"dq\"?"},
      {"q=4 d=4 dir=bwd want=dsink", "case: sink is 0, expected 1 (from want=dsink)"},
      {"q=4 d=4 dir=bwd lse=0", "case: lse is 0, expected 1 (from dir=bwd)"},
      {"q=4 d=4 dlse=1", "case: dlse is 1, expected 0 (from dir=fwd)"},
  };
  for (const Mistake& mistake : mistakes) {
    try {
      parse_case(mistake.text);
      ADD_FAILURE() << "accepted: " << mistake.text;
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), mistake.message) << mistake.text;
    }
  }
}

}  // namespace
}  // namespace tilewise
