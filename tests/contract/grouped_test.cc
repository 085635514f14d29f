// Few rows of query heads that share a kv head: the cpu backend gives them one tile. Each row keeps
// its own mask, ALiBi slope, sink, dropout bits and LSE.
#include <gtest/gtest.h>

#include <string>

#include "case/case_data.h"
#include "tests/case_expect.h"

namespace tilewise::test {
namespace {

constexpr std::initializer_list<Arg> kResults = {Arg::out, Arg::lse};

TEST(Grouped, RowsKeepTheirOwnOptions) {
  for (const char* sizes : {"hq=6 hkv=2 q=1 kv=70", "hq=8 hkv=2 q=3 kv=200", "hq=6 hkv=3 q=9 kv=40",
                            "hq=40 hkv=1 q=1 kv=130", "b=2 hq=8 hkv=1 q=4 kv=260"}) {
    for (const char* options :
         {"", "mask=causal", "mask=causal:-2", "mask=window:5:0", "alibi=2 mask=causal", "sink=1",
          "dropout=0.3", "softcap=5", "mask=window:40:1 alibi=2 sink=1 dropout=0.2"}) {
      expect_all_match_everywhere({std::string(sizes) + " d=20 dv=12 " + options});
    }
  }
}

TEST(Grouped, AnyLayoutAndLengths) {
  expect_all_match_everywhere({
      "hq=8 hkv=2 q=2 kv=65 d=64 layout=bhsd mask=causal",
      "hq=8 hkv=2 q=2 kv=65 d=64 layout=strided sink=1",
      "hq=8 hkv=2 qlens=1,0,5,3 kvlens=70,4,0,300 d=16 mask=causal",
      "hq=6 hkv=2 qlens=1,1,1 kvlens=1,130,64 d=16 alibi=2 dropout=0.2 layout=strided",
      "hq=4 hkv=1 q=3 kv=3 d=16 mask=causal",    // the first row sees one key
      "hq=4 hkv=1 q=5 kv=2 d=16 mask=causal",    // and here nothing
      "hq=8 hkv=2 q=13 kv=70 d=16 mask=causal",  // around the most rows that are shared
      "hq=8 hkv=2 q=17 kv=70 d=16 mask=causal",
  });
}

// Long keys of few rows are attended to in parts, of 1024 keys or more.
TEST(Grouped, PartsOfTheKeys) {
  for (const char* sizes :
       {"q=1 kv=2049 d=16", "hq=8 hkv=2 q=3 kv=3000 d=20 dv=12", "hq=40 hkv=1 q=1 kv=4100 d=8"}) {
    for (const char* options :
         {"", "mask=causal", "mask=window:300:1 alibi=2 sink=1 dropout=0.2", "softcap=5 dtype=bf16",
          // one key; the keys of one part; nothing
          "mask=window:0:0", "mask=window:0:0:-1500 dtype=fp16", "mask=window:900:0:-1100 sink=1",
          "mask=causal:-2990", "mask=causal:-9000"}) {
      expect_matches_reference(std::string(sizes) + " " + options);
    }
  }
}

// One row of a head has the bits that it has where K and V are the head's own.
TEST(Grouped, SharingChangesNoBit) {
  const std::string rest = " q=1 kv=300 d=24 alibi=2 sink=1 dropout=0.2";
  for (const Target& target : targets()) {
    if (target.backend != "cpu") continue;
    const Case shared_text = target.fitted(parse_case("hq=6 hkv=2" + rest));
    CaseTensors shared(shared_text);
    CaseTensors own(target.fitted(parse_case("hq=6 hkv=6" + rest)));
    for (const Arg arg : {Arg::k, Arg::v}) {
      set_values(own, arg, [&](ElementIndex at) {
        at.head /= 3;
        return case_value(shared_text, arg, at);
      });
    }
    run_case(shared, target);
    run_case(own, target);
    for (const Arg arg : kResults) {
      EXPECT_EQ(values_of(shared, arg), values_of(own, arg)) << target.name() << name_of(arg);
    }
  }
}

}  // namespace
}  // namespace tilewise::test
