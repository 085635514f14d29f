// The built program as its users meet it: verbs, exit statuses, messages, what it writes and what
// it leaves alone.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "cli/tensor_file.h"
#include "element.h"
#include "tests/cli/temporary.h"

namespace tilewise::cli {
namespace {

struct Outcome {
  int status = -1;
  std::string out;
  std::string err;
};

std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Runs `tilewise ARGUMENTS` in `folder`, both outputs piped to files.
Outcome tilewise_in(const TemporaryFolder& folder, const std::string& arguments) {
  const TemporaryFolder outputs;
  const std::string command = "cd '" + folder.path() + "' && '" TILEWISE_PROGRAM "' " + arguments +
                              " >'" + outputs.file("out") + "' 2>'" + outputs.file("err") + "'";
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(outputs.file("out")),
          contents(outputs.file("err"))};
}

Outcome tilewise(const std::string& arguments) { return tilewise_in(TemporaryFolder(), arguments); }

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

HostTensor waves(const std::string& name, DType dtype, std::vector<int64_t> shape, int step) {
  HostTensor made(name, dtype, std::move(shape));
  const int64_t count = static_cast<int64_t>(made.bytes()) / size_of(dtype);
  for (int64_t i = 0; i < count; ++i) {
    store_element(made.data(), dtype, i, static_cast<float>(i * step % 17 - 8) / 8);
  }
  return made;
}

// q [1, 6, 4, 8], k and v [1, 6, 2, 8].
void write_inputs(const TemporaryFolder& folder, DType dtype) {
  const HostTensor q = waves("q", dtype, {1, 6, 4, 8}, 3);
  const HostTensor k = waves("k", dtype, {1, 6, 2, 8}, 5);
  const HostTensor v = waves("v", dtype, {1, 6, 2, 8}, 7);
  const HostTensor* const all[] = {&q, &k, &v};
  write_safetensors(folder.file("x.safetensors"), all, {});
  write_npy(folder.file("q.npy"), q);
  write_npy(folder.file("k.npy"), k);
  write_npy(folder.file("v.npy"), v);
}

TEST(CommandLine, SaysWhatItIs) {
  EXPECT_EQ(tilewise("--version").out, "tilewise " + std::string(version()) + "\n");
  EXPECT_EQ(tilewise("--version").status, 0);
  const Outcome help = tilewise("--help");
  EXPECT_EQ(help.status, 0);
  for (const char* verb :
       {"run", "check", "bench", "support", "doctor", "demo", "prebuild", "explain", "profile"}) {
    EXPECT_TRUE(has(help.out, verb)) << verb;
  }
  EXPECT_EQ(tilewise("").status, 2);
}

struct Mistake {
  const char* arguments;
  const char* message;
};

TEST(CommandLine, AnswersMistakesInOneLine) {
  const Mistake mistakes[] = {
      {"chek q=4", "tilewise: verb \"chek\" is not known, did you mean \"check\"?\n"},
      {"frobnicate",
       "tilewise: verb \"frobnicate\" is not known, expected run, check, bench, support, doctor, "
       "demo, prebuild, explain, profile\n"},
      {"check --backnd cpu q=4",
       "tilewise: check: flag \"--backnd\" is not known, did you mean \"--backend\"?\n"},
      {"bench --zzzzzz=3 q=4",
       "tilewise: bench: flag \"--zzzzzz\" is not known, see tilewise bench --help\n"},
      {"--versio",
       "tilewise: flag \"--versio\" is not known before a verb, did you mean \"--version\"?\n"},
      {"check", "tilewise: check: case is required\n"},
      {"check ''", "tilewise: case: d is not given, expected a head_dim, as in d=64\n"},
      {"run x.safetensors --seed -1", "tilewise: run: --seed: -1 is negative\n"},
      {"check 'q=4 d=4' --backend cpuu",
       "tilewise: backend \"cpuu\" is not known, did you mean \"cpu\"?\n"},
      {"check q=4 dd=4", "tilewise: case: \"dd=4\": unknown key \"dd\", did you mean \"d\"?\n"},
      {"check 'q=4 d=4 hq=3 hkv=2'",
       "tilewise: forward: q_heads is 3, expected a multiple of kv_heads 2 (from k.size[2])\n"},
      {"check 'q=4 d=300'", "tilewise: forward: q.size[3] is 300, expected 1..256\n"},
      {"run none.safetensors",
       "tilewise: none.safetensors: cannot be opened: No such file or directory\n"},
      {"run x.txt", "tilewise: x.txt: name ends in neither .safetensors nor .npy\n"},
      {"run q.npy k.npy", "tilewise: run: expected three .npy files: q.npy k.npy v.npy\n"},
  };
  for (const Mistake& mistake : mistakes) {
    const Outcome outcome = tilewise(mistake.arguments);
    EXPECT_EQ(outcome.status, 2) << mistake.arguments;
    EXPECT_EQ(outcome.err, mistake.message);
    EXPECT_EQ(outcome.out, "");
  }
  const Outcome mask = tilewise("run x.safetensors --mask casual");
  EXPECT_EQ(mask.status, 2);
  EXPECT_TRUE(has(mask.err, "did you mean \"causal\"?")) << mask.err;
}

TEST(CommandLine, RefusesWhatDoesNotFitIntoMemory) {
  const Outcome outcome = tilewise("check q=4000000000000 d=128");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_TRUE(has(outcome.err, "its tensors take")) << outcome.err;
}

TEST(Check, PassesAndSaysHowNear) {
  const Outcome outcome = tilewise("check b=1 hq=2 q=20 d=16 mask=causal dir=bwd");
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "pass  cpu")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, " 0 failed, worst 0.")) << outcome.out;
  EXPECT_EQ(outcome.err, "");  // no progress when piped
}

TEST(Check, TakesSeveralCasesAndOneBackend) {
  const Outcome outcome = tilewise("check 'q=4 d=4' 'q=5 d=4' --backend reference --csv");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_TRUE(
      outcome.out.starts_with("case,backend,supported,passed,failed,worst_ratio\n"
                              "b=1 hq=1 q=4 d=4,reference,1,1,0,"))
      << outcome.out;
}

TEST(Check, ReadsRecordings) {
  const TemporaryFolder folder;
  write_inputs(folder, DType::bf16);
  const std::string sizes = "check hq=4 hkv=2 q=6 d=8 dtype=bf16 --backend reference data=file:";
  const Outcome outcome = tilewise_in(folder, sizes + "x");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "1 passed, 0 failed")) << outcome.out;
  EXPECT_EQ(tilewise_in(folder, sizes + "./x.safetensors").status, 0);
  const Outcome none = tilewise_in(folder, sizes + "y");
  EXPECT_EQ(none.status, 2);
  EXPECT_TRUE(none.err.starts_with("tilewise: data=file:y: no y.safetensors in ")) << none.err;
}

// Real keys are so large that the terms of d_k cancel: the bound must know why.
TEST(Check, PassesTheRealRecordings) {
  for (const std::string layer : {"0", "2", "5"}) {
    for (const std::string backend : {"cpu", "standard"}) {
      const Outcome outcome = tilewise(
          "check 'hq=9 hkv=3 q=777 d=64 mask=causal dtype=bf16 dir=bwd data=file:smollm2-layer" +
          layer + "' --backend " + backend);
      EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    }
  }
}

TEST(Check, PlainProgressHasNoEscapes) {
  const Outcome outcome = tilewise("check 'q=4 d=4' --backend reference --progress plain");
  EXPECT_TRUE(has(outcome.err, "1/1 checks")) << outcome.err;
  EXPECT_FALSE(has(outcome.err, "\x1b"));
}

TEST(Bench, PrintsTheObjectOfResultFiles) {
  const Outcome outcome = tilewise("bench 'q=16 d=16 mask=causal' --threads 1 -r 2 --json");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part :
       {"\"schema\": 1", "\"machine\"", "\"versions\"", "\"commit\"", "\"date\"",
        "\"command\": \"tilewise bench \\\"q=16 d=16 mask=causal\\\" --threads 1 -r 2 --json\"",
        "\"case\": \"b=1 hq=1 q=16 d=16 mask=causal\"", "\"clock\": \"thread_cpu\"", "\"ms\"",
        "\"share_of_peak\""}) {
    EXPECT_TRUE(has(outcome.out, part)) << part << "\n" << outcome.out;
  }
}

TEST(Bench, ShowsThePassesOfStandardAttention) {
  const std::string call = "bench 'q=64 d=16' --backend standard --threads 1 -r 2";
  const Outcome text = tilewise(call);
  EXPECT_TRUE(has(text.out, "\npasses of b=1 hq=1 q=64 d=16: scores ")) << text.out;
  EXPECT_TRUE(has(text.out, " GFLOP/s), softmax ")) << text.out;
  EXPECT_TRUE(has(text.out, ", out ")) << text.out;
  const Outcome backward = tilewise("bench 'q=64 d=16 dir=bwd' --backend standard --json -r 2");
  for (const char* key : {"\"scores_ms\"", "\"d_scores_ms\"", "\"d_q_ms\"", "\"d_kv_tflops\""}) {
    EXPECT_TRUE(has(backward.out, key)) << key << backward.out;
  }
  EXPECT_FALSE(has(tilewise("bench 'q=64 d=16' -r 2").out, "passes"));
}

TEST(Support, PrintsAMatrix) {
  const Outcome outcome = tilewise("support --markdown");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("| feature ")) << outcome.out;
  for (const char* part : {"| cpu", "| standard", "| reference", "| sliding window"}) {
    EXPECT_TRUE(has(outcome.out, part)) << part;
  }
}

TEST(Doctor, LooksAtTheMachine) {
  const Outcome outcome = tilewise("doctor");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part : {"cpu ", "instruction set", "memory", "threads", "gpu", "nvrtc"}) {
    EXPECT_TRUE(has(outcome.out, part)) << part;
  }
}

TEST(Run, WritesResultsOfEveryDtype) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const TemporaryFolder folder;
    write_inputs(folder, dtype);
    const Outcome outcome = tilewise_in(folder, "run x.safetensors --mask causal --backward");
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    for (const char* part : {"backend: cpu", "workspace: ", "time: ", "peak extra memory: "}) {
      EXPECT_TRUE(has(outcome.out, part)) << part;
    }
    const TensorFile file(folder.file("x.out.safetensors"));
    EXPECT_EQ(file.read("out").shape(), (std::vector<int64_t>{1, 6, 4, 8}));
    EXPECT_EQ(file.read("out").dtype(), dtype);
    EXPECT_EQ(file.read("lse").shape(), (std::vector<int64_t>{1, 4, 6}));
    EXPECT_EQ(file.read("d_k").shape(), (std::vector<int64_t>{1, 6, 2, 8}));
    // Row 0 sees one key: out is v, bit for bit.
    const HostTensor out = file.read("out");
    const HostTensor v = TensorFile(folder.file("v.npy")).read("v");
    EXPECT_EQ(std::memcmp(out.data(), v.data(), static_cast<size_t>(8 * size_of(dtype))), 0);
  }
}

TEST(Run, NpyAndSafetensorsAgree) {
  const TemporaryFolder folder;
  write_inputs(folder, DType::f32);
  EXPECT_EQ(tilewise_in(folder, "run x.safetensors").status, 0);
  EXPECT_EQ(tilewise_in(folder, "run q.npy k.npy v.npy -o y.npy").status, 0);
  const HostTensor a = TensorFile(folder.file("x.out.safetensors")).read("out");
  const HostTensor b = TensorFile(folder.file("y.npy")).read("out");
  ASSERT_EQ(a.shape(), b.shape());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0);
  EXPECT_EQ(TensorFile(folder.file("y.lse.npy")).read("lse").shape(),
            (std::vector<int64_t>{1, 4, 6}));
}

TEST(Run, RefusesAndWritesNothing) {
  const TemporaryFolder folder;
  write_inputs(folder, DType::f32);
  const std::string whole = contents(folder.file("x.safetensors"));
  folder.write("short.safetensors", whole.substr(0, whole.size() - 1));
  const std::vector<std::string> before = folder.names();
  const char* const bad[] = {"run short.safetensors",
                             "run x.safetensors --softcap -1",
                             "run x.safetensors --scale 0",
                             "run x.safetensors --dropout 1",
                             "run x.safetensors --layout hbsd",
                             "run x.safetensors --layout bhsd --backend no",
                             "run x.safetensors -o x.safetensors",
                             "run x.safetensors -o no/such/folder.safetensors",
                             "run x.safetensors -o y.txt"};
  for (const char* arguments : bad) {
    const Outcome outcome = tilewise_in(folder, arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_TRUE(outcome.err.starts_with("tilewise: ")) << outcome.err;
    EXPECT_EQ(folder.names().size(), before.size()) << arguments;
  }
  EXPECT_EQ(contents(folder.file("x.safetensors")), whole);
}

TEST(Run, OptionsChangeTheResult) {
  const TemporaryFolder folder;
  write_inputs(folder, DType::f32);
  const auto out_of = [&](const std::string& options) {
    EXPECT_EQ(tilewise_in(folder, "run x.safetensors -o y.safetensors " + options).status, 0);
    return contents(folder.file("y.safetensors"));
  };
  const std::string plain = out_of("");
  EXPECT_EQ(out_of(""), plain);
  for (const char* option : {"--mask causal", "--mask window:1:0", "--scale 2", "--softcap 1",
                             "--dropout 0.5", "--dropout 0.5 --seed 3"}) {
    EXPECT_NE(out_of(option), plain) << option;
  }
}

TEST(Demo, SaysWhereItLookedForData) {
  const Outcome outcome = tilewise("demo --data /nowhere");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_TRUE(has(outcome.err, "/nowhere")) << outcome.err;
}

TEST(Demo, ShowsOneTableAndASentence) {
  const Outcome outcome = tilewise("demo --length 256 --data '" TILEWISE_SOURCE_DIR "/tests/data'");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(has(outcome.out, "standard: time")) << outcome.out;
  EXPECT_TRUE(has(outcome.out, "\nShown: on ")) << outcome.out;
}

}  // namespace
}  // namespace tilewise::cli
