#include "roformer/data/token_file.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>

#include "tests/data/text_support.h"
#include "tests/support.h"

namespace roformer {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::error_of;
using test::made_up_text;
using test::TempDir;
using test::write_text;
using IdWindow = std::vector<int32_t>;

const Tokenizer& byte_tokenizer() {
  static const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(BytesOptions{});
  return *tokenizer;
}

IdWindow ids_of_text(std::string_view text) {
  IdWindow ids;
  byte_tokenizer().encode(text, ids);
  return ids;
}

std::vector<IdWindow> pack(Packing packing, int64_t length, const std::vector<std::string>& documents) {
  std::vector<IdWindow> windows;
  Packer packer(packing, length, byte_tokenizer(),
                [&](const IdWindow& window) { windows.push_back(window); });
  for (const std::string& document : documents) packer.add(ids_of_text(document));
  packer.finish();
  return windows;
}

/// A window in letters: < > _ for [CLS] [SEP] [PAD].
std::string letters_of(const IdWindow& window) {
  std::string text;
  for (const int32_t id : window)
    text += id < 256 ? static_cast<char>(id) : id == 258 ? '<' : id == 259 ? '>' : '_';
  return text;
}

std::vector<std::string> packed(Packing packing, int64_t length, const std::vector<std::string>& documents) {
  std::vector<std::string> all;
  for (const IdWindow& window : pack(packing, length, documents)) all.push_back(letters_of(window));
  return all;
}

std::vector<IdWindow> windows_of(const TokenFile& file) {
  std::vector<IdWindow> windows(static_cast<size_t>(file.windows()),
                                IdWindow(static_cast<size_t>(file.length())));
  for (int64_t i = 0; i < file.windows(); ++i) file.read(i, windows[static_cast<size_t>(i)].data());
  return windows;
}

DataOptions data_of(const fs::path& train, int64_t length = 32, Packing packing = Packing::windows) {
  DataOptions options;
  options.train = {train};
  options.length = length;
  options.packing = packing;
  return options;
}

std::string bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// The documents in the windows of packing `documents`, without what wraps them.
std::multiset<std::string> texts_in(const TokenFile& file) {
  std::multiset<std::string> texts;
  for (const IdWindow& window : windows_of(file)) {
    std::string text;
    for (const int32_t id : window) {
      if (id < 256) text += static_cast<char>(id);
      if (id == 259) texts.insert(std::exchange(text, ""));
    }
  }
  return texts;
}

}  // namespace

TEST_CASE("packing: windows") {
  CHECK(packed(Packing::windows, 4, {"abc", "defg", "hijk", "l"}) ==
        std::vector<std::string>{"abcd", "efgh", "ijkl"});
  CHECK(packed(Packing::windows, 4, {"abc"}).empty());
}

TEST_CASE("packing: documents") {
  CHECK(packed(Packing::documents, 8, {"abc", "d"}) == std::vector<std::string>{"<abc><d>"});
  // Continued in the next window, wrapped again.
  CHECK(packed(Packing::documents, 8, {"abcdefghijk"}) == std::vector<std::string>{"<abcdef>", "<ghijk>_"});
  CHECK(packed(Packing::documents, 8, {"abcd", "ef"}) == std::vector<std::string>{"<abcd>__", "<ef>____"});
  CHECK(packed(Packing::documents, 8, {"abc", "ef"}) == std::vector<std::string>{"<abc><e>", "<f>_____"});
  CHECK(packed(Packing::documents, 8, {"abcde", "ef"}) == std::vector<std::string>{"<abcde>_", "<ef>____"});
  CHECK(packed(Packing::documents, 8, {"abcdef", "ef"}) == std::vector<std::string>{"<abcdef>", "<ef>____"});
  CHECK(packed(Packing::documents, 8, {"abcdef"}) == std::vector<std::string>{"<abcdef>"});
  CHECK(packed(Packing::documents, 3, {"ab", "c"}) == std::vector<std::string>{"<a>", "<b>", "<c>"});
  CHECK(packed(Packing::documents, 8, {"", ""}).empty());
}

TEST_CASE("packing: rows, and the rest of each 1,000 dropped") {
  CHECK(packed(Packing::rows, 4, {"ab", "c", "defg"}) == std::vector<std::string>{"<ab>", "<c><", "defg"});
  std::vector<std::string> rows(2500, "abc");  // 5 tokens each
  rows[1000] = rows[2000] = "xyz";
  const std::vector<IdWindow> windows = pack(Packing::rows, 128, rows);
  // 39 windows of 128 in 5,000 tokens, twice; 19 in the last 2,500.
  REQUIRE(windows.size() == 39 + 39 + 19);
  CHECK(letters_of(windows[39]).starts_with("<xyz><abc>"));  // a new group starts afresh
  CHECK(letters_of(windows[78]).starts_with("<xyz><abc>"));
  CHECK_FALSE(letters_of(windows[1]).starts_with("<abc>"));
}

TEST_CASE("corpus: windows of bytes are the text itself") {
  const TempDir dir;
  const std::string text = made_up_text(400'000);
  const fs::path file = write_text(dir / "t.txt", text);
  DataOptions options = data_of(file, 100);
  options.valid_fraction = 0.0;
  const Corpus corpus = prepare_corpus(options, byte_tokenizer(), dir / "cache");
  CHECK(corpus.valid->windows() == 0);
  REQUIRE(corpus.train->windows() == static_cast<int64_t>(text.size()) / 100);
  std::string joined;
  for (const IdWindow& window : windows_of(*corpus.train)) joined += letters_of(window);
  CHECK(joined == text.substr(0, joined.size()));
  const TokenFile::Counts& counts = corpus.train->counts();
  CHECK(counts.documents == static_cast<int64_t>((text.size() + 65535) / 65536));
  CHECK(counts.bytes == static_cast<int64_t>(text.size()));
  CHECK(counts.tokens == corpus.train->windows() * 100);
  // One byte a token, since no special token occurs.
  CHECK(fs::file_size(corpus.train->path()) == static_cast<uintmax_t>(corpus.train->windows() * 100 + 96));
}

TEST_CASE("corpus: ids of one, two and four bytes") {
  const TempDir dir;
  const std::string text = "Größe 東京 😀\n\nzweiter Absatz 語\n\n" + made_up_text(2000);
  DataOptions options = data_of(write_text(dir / "t.txt", text), 16, Packing::documents);
  options.valid_fraction = 0.0;
  const Corpus wide = prepare_corpus(options, test::CodePointTokenizer(), dir / "cache");
  CHECK(fs::file_size(wide.train->path()) == static_cast<uintmax_t>(wide.train->windows() * 16 * 4 + 96));
  IdWindow first(16);
  wide.train->read(0, first.data());
  CHECK(first == IdWindow{2, 'G' + 5, 'r' + 5, 0xF6 + 5, 0xDF + 5, 'e' + 5, ' ' + 5, 0x6771 + 5, 0x4EAC + 5,
                          ' ' + 5, 0x1F600 + 5, 3, 2, 'z' + 5, 'w' + 5, 3});
  const Corpus narrow = prepare_corpus(options, byte_tokenizer(), dir / "cache");
  CHECK(fs::file_size(narrow.train->path()) == static_cast<uintmax_t>(narrow.train->windows() * 16 * 2 + 96));
  CHECK(letters_of(windows_of(*narrow.train)[0]) == "<Größe 東京>");
  int64_t padding = 0;
  for (const IdWindow& window : windows_of(*narrow.train))
    padding += std::count(window.begin(), window.end(), 256);
  CHECK(narrow.train->counts().tokens == narrow.train->windows() * 16 - padding);
  CHECK(padding > 0);
}

TEST_CASE("corpus: the split is disjoint, complete, stable, and about as large as asked for") {
  const TempDir dir;
  std::string text;
  std::set<std::string> all;
  for (int i = 0; i < 4000; ++i) {
    const std::string document = "Document " + std::to_string(i * 7919) + ".";
    all.insert(document);
    text += document + "\n\n";
  }
  DataOptions options = data_of(write_text(dir / "a.txt", text), 64, Packing::documents);
  options.valid_fraction = 0.1;
  const auto split_of = [&](const char* cache) {
    const Corpus corpus = prepare_corpus(options, byte_tokenizer(), dir / cache);
    return std::pair(texts_in(*corpus.train), texts_in(*corpus.valid));
  };
  // Documents cut at the end of a window come out in two parts; whole ones are enough here.
  const auto [train, valid] = split_of("1");
  for (const std::string& document : valid) {
    if (all.contains(document)) CHECK(train.count(document) == 0);
  }
  const Corpus corpus = prepare_corpus(options, byte_tokenizer(), dir / "1");
  CHECK(corpus.train->counts().documents + corpus.valid->counts().documents == 4000);
  CHECK(corpus.valid->counts().documents == Approx(400).margin(95));  // 5 sd
  CHECK((split_of("2") == std::pair(train, valid)));  // LibTorch cannot print a pair of sets

  // More text before and after moves no document to the other side.
  write_text(dir / "a.txt", "Another one.\n\n" + text + "And one more.\n\n");
  const Corpus grown = prepare_corpus(options, byte_tokenizer(), dir / "1");
  CHECK(grown.train->counts().documents + grown.valid->counts().documents == 4002);
  CHECK(grown.valid->counts().documents - corpus.valid->counts().documents <= 2);

  options.split_seed = 1;
  CHECK(split_of("1").second != valid);
}

TEST_CASE("corpus: equal documents go the same way") {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 600; ++i) text += "d" + std::to_string(i % 300) + "\n\n";
  DataOptions options = data_of(write_text(dir / "t.txt", text), 8, Packing::documents);
  options.valid_fraction = 0.3;
  const Corpus corpus = prepare_corpus(options, byte_tokenizer(), dir / "cache");
  CHECK(corpus.valid->counts().documents > 60);
  CHECK(corpus.valid->counts().documents % 2 == 0);
}

TEST_CASE("corpus: neither side is ever empty") {
  const TempDir dir;
  for (const double fraction : {1e-9, 0.05, 0.9}) {
    for (const int documents : {1, 2, 3}) {
      std::string text;
      for (int i = 0; i < documents; ++i)
        text += "The text of document number " + std::to_string(i) + ".\n\n";
      DataOptions options = data_of(write_text(dir / "t.txt", text), 8, Packing::documents);
      options.valid_fraction = fraction;
      INFO(documents << " documents, fraction " << fraction);
      const Corpus corpus = prepare_corpus(options, byte_tokenizer(), dir / "cache");
      CHECK(corpus.train->windows() > 0);
      CHECK(corpus.valid->windows() > 0);
      if (documents == 1) continue;
      CHECK(corpus.train->counts().documents + corpus.valid->counts().documents == documents);
      if (fraction < 1e-3) CHECK(corpus.valid->counts().documents == 1);
      if (fraction > 0.5) CHECK(corpus.train->counts().documents == 1);
    }
  }
  // The one document is cut, its end is held out.
  const std::string text = made_up_text(20'000);
  DataOptions options = data_of(write_text(dir / "one.txt", text), 10);
  options.valid_fraction = 0.1;
  const Corpus corpus = prepare_corpus(options, byte_tokenizer(), dir / "cache");
  CHECK(corpus.valid->counts().bytes == Approx(text.size() * 0.1).margin(20));
  std::string train, valid;
  for (const IdWindow& window : windows_of(*corpus.train)) train += letters_of(window);
  for (const IdWindow& window : windows_of(*corpus.valid)) valid += letters_of(window);
  CHECK(text.starts_with(train));
  CHECK(contains(text.substr(train.size()), valid));
}

TEST_CASE("corpus: validation text of its own") {
  const TempDir dir;
  const std::string a = made_up_text(30'000, 1), b = made_up_text(5'000, 2);
  DataOptions options = data_of(write_text(dir / "a.txt", a), 10);
  options.valid = {write_text(dir / "b.txt", b)};
  const Corpus corpus = prepare_corpus(options, byte_tokenizer(), dir / "cache");
  CHECK(corpus.train->windows() == static_cast<int64_t>(a.size() / 10));
  CHECK(corpus.valid->windows() == static_cast<int64_t>(b.size() / 10));
  options.valid_fraction = 0.5;  // does not count
  CHECK(prepare_corpus(options, byte_tokenizer(), dir / "cache").from_cache);
  options.valid = {dir / "a.txt"};
  CHECK(contains(error_of([&] { prepare_corpus(options, byte_tokenizer(), dir / "cache"); }), "data.valid"));
}

TEST_CASE("corpus: packed text gives the same windows") {
  const TempDir dir;
  const std::string text = made_up_text(300'000);
  for (const Packing packing : {Packing::windows, Packing::documents, Packing::rows}) {
    const Corpus plain = prepare_corpus(data_of(write_text(dir / "t.txt", text), 64, packing),
                                        byte_tokenizer(), dir / "cache");
    const Corpus gz = prepare_corpus(data_of(test::write_gzip(dir / "t.gz", text), 64, packing),
                                     byte_tokenizer(), dir / "cache");
    CHECK(plain.train->path() != gz.train->path());
    CHECK(windows_of(*plain.train) == windows_of(*gz.train));
    CHECK(windows_of(*plain.valid) == windows_of(*gz.valid));
  }
}

TEST_CASE("cache: used again, and made anew when anything changes") {
  const TempDir dir;
  const fs::path file = write_text(dir / "t.txt", made_up_text(300'000));
  const DataOptions options = data_of(file);
  const auto cached = [&](const DataOptions& o) {
    return prepare_corpus(o, byte_tokenizer(), dir / "cache").from_cache;
  };
  CHECK_FALSE(cached(options));
  CHECK(cached(options));
  CHECK(names_in(dir / "cache").size() == 3);  // .lock and two token files: no leftovers

  DataOptions changed = options;
  changed.length = 33;
  CHECK_FALSE(cached(changed));
  changed = options;
  changed.packing = Packing::rows;
  CHECK_FALSE(cached(changed));
  changed = options;
  changed.valid_fraction = 0.2;
  CHECK_FALSE(cached(changed));
  changed = options;
  changed.split_seed = 5;
  CHECK_FALSE(cached(changed));
  changed = options;
  changed.eval_sequences = 5;  // no matter of the text
  CHECK(cached(changed));
  fs::copy_file(file, dir / "copy.txt");
  CHECK_FALSE(cached(data_of(dir / "copy.txt")));
  CHECK(cached(data_of(dir / "." / "copy.txt")));

  CHECK(cached(options));
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::nanoseconds(1000));
  CHECK_FALSE(cached(options));
  write_text(file, made_up_text(300'001));
  CHECK_FALSE(cached(options));

  test::CodePointTokenizer tokenizer;
  const auto with_tokenizer = [&] { return prepare_corpus(options, tokenizer, dir / "cache").from_cache; };
  CHECK_FALSE(with_tokenizer());
  CHECK(with_tokenizer());
  tokenizer.fingerprint_ = "other code points";
  CHECK_FALSE(with_tokenizer());
}

TEST_CASE("cache: damaged files are noticed and made anew") {
  const TempDir dir;
  const DataOptions options = data_of(write_text(dir / "t.txt", made_up_text(300'000)));
  const auto prepare = [&] { return prepare_corpus(options, byte_tokenizer(), dir / "cache"); };
  const Corpus good = prepare();
  for (const fs::path& file : {good.train->path(), good.valid->path()}) {
    const std::string bytes = bytes_of(file);
    const auto flipped = [&](size_t at) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ 1);
      return changed;
    };
    std::vector<std::string> damaged = {"",
                                        "short",
                                        bytes.substr(0, bytes.size() - 1),
                                        bytes.substr(0, bytes.size() / 2),
                                        bytes.substr(32),
                                        bytes + "x",
                                        std::string(bytes.size(), '\0'),
                                        flipped(0),
                                        flipped(bytes.size() / 2)};
    for (size_t i = bytes.size() - 96; i < bytes.size(); i += 4) damaged.push_back(flipped(i));
    for (const std::string& content : damaged) {
      write_text(file, content);
      CHECK_FALSE(prepare().from_cache);
      CHECK(bytes_of(file) == bytes);
    }
    fs::remove(file);
    CHECK_FALSE(prepare().from_cache);
    CHECK(prepare().from_cache);
  }
}

TEST_CASE("cache: a file that is cut or overwritten while in use gives an error, no crash") {
  const TempDir dir;
  DataOptions options = data_of(write_text(dir / "t.txt", made_up_text(300'000)), 32, Packing::documents);
  const Corpus corpus = prepare_corpus(options, byte_tokenizer(), dir / "cache");
  IdWindow ids(32);
  const int64_t last = corpus.train->windows() - 1;
  corpus.train->read(last, ids.data());
  CHECK_THROWS_AS(corpus.train->read(last + 1, ids.data()), std::out_of_range);
  CHECK_THROWS_AS(corpus.train->read(-1, ids.data()), std::out_of_range);
  {
    std::fstream file(corpus.train->path(), std::ios::in | std::ios::out | std::ios::binary);
    file.write("\xFF\xFF", 2);
  }
  const std::string overwritten = error_of([&] { corpus.train->read(0, ids.data()); });
  CHECK(contains(overwritten, corpus.train->path().string() + ": damaged"));
  fs::resize_file(corpus.train->path(), 1000);
  CHECK(contains(error_of([&] { corpus.train->read(last, ids.data()); }), "damaged"));
}

TEST_CASE("cache: several processes at once") {
  const TempDir dir;
  const DataOptions options = data_of(write_text(dir / "t.txt", made_up_text(3'000'000)));
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      int code = 1;
      try {
        const Corpus corpus = prepare_corpus(options, byte_tokenizer(), dir / "cache");
        IdWindow ids(32);
        int64_t sum = 0;
        for (int64_t k = 0; k < corpus.train->windows(); ++k) {
          corpus.train->read(k, ids.data());
          sum += std::accumulate(ids.begin(), ids.end(), int64_t{0});
        }
        // 10: prepared here; 11: by another process.
        code = sum > 0 ? 10 + corpus.from_cache : 2;
      } catch (...) {
      }
      ::_exit(code);
    }
    children.push_back(child);
  }
  int prepared = 0;
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) >= 10);
    prepared += WEXITSTATUS(status) == 10;
  }
  CHECK(prepared == 1);
  CHECK(names_in(dir / "cache").size() == 3);
}

TEST_CASE("corpus: what does not suffice is said in one line") {
  const TempDir dir;
  const auto error_with = [&](const DataOptions& options) {
    const std::string error = error_of([&] { prepare_corpus(options, byte_tokenizer(), dir / "cache"); });
    CHECK_FALSE(contains(error, "\n"));
    if (fs::exists(dir / "cache")) CHECK(names_in(dir / "cache") == std::vector<std::string>{".lock"});
    return error;
  };
  const fs::path empty = write_text(dir / "empty.txt", "");
  CHECK(error_with(data_of(empty)) == empty.string() + ": no text in it");
  const fs::path blank = write_text(dir / "blank.txt", "\n \r\n\t\n");
  CHECK(contains(error_with(data_of(blank, 32, Packing::documents)), "no text in it"));
  CHECK(contains(error_with(data_of(dir / "missing.txt")), "missing.txt: No such file"));
  const fs::path tiny = write_text(dir / "tiny.txt", "ten bytes.");
  CHECK(contains(error_with(data_of(tiny)), "its 4 tokens of training text do not fill one sequence of 32"));
  const fs::path small = write_text(dir / "small.txt", made_up_text(200));
  CHECK(contains(error_with(data_of(small)), "held out for validation do not fill one sequence of 32"));
  DataOptions two = data_of(small);
  two.valid = {tiny};
  CHECK(contains(error_with(two), tiny.string() + ": its 10 tokens do not fill"));
  two.valid = {empty};
  CHECK(contains(error_with(two), empty.string()));
  CHECK(contains(error_of([&] { prepare_corpus(data_of(small), byte_tokenizer(), small / "cache"); }),
                 "small.txt"));

  DataOptions enough = data_of(small);
  enough.valid_fraction = 0.3;
  const Corpus corpus = prepare_corpus(enough, byte_tokenizer(), dir / "cache");
  const int64_t windows = corpus.train->windows();
  CHECK(error_of([&] { corpus.require_batch(windows); }).empty());
  const std::string error = error_of([&] { corpus.require_batch(windows + 1); });
  CHECK(contains(error, "fewer than one batch of " + std::to_string(windows + 1)));
}

TEST_CASE("corpus: text that changes while it is read") {
  const TempDir dir;
  const fs::path file = dir / "t.txt";
  const auto error_with = [&](const std::function<void()>& change) {
    write_text(file, made_up_text(4'000'000));
    int calls = 0;
    const std::string error = error_of([&] {
      prepare_corpus(data_of(file), byte_tokenizer(), dir / "cache", [&](int64_t, int64_t) {
        if (++calls == 2) change();
      });
    });
    CHECK(contains(error, file.string()));
    CHECK(names_in(dir / "cache") == std::vector<std::string>{".lock"});
    return error;
  };
  CHECK(contains(error_with([&] { fs::resize_file(file, 3'000'000); }), "shrank from 40"));
  CHECK(contains(error_with([&] { std::ofstream(file, std::ios::app) << "more"; }),
                 "changed while it was read"));
}

TEST_CASE("corpus: progress goes from nothing to all, and may stop the work") {
  const TempDir dir;
  write_text(dir / "in/a.txt", made_up_text(2'500'000, 1));
  write_text(dir / "in/b.txt", made_up_text(1'500'000, 2));
  const auto size = static_cast<int64_t>(fs::file_size(dir / "in/a.txt") + fs::file_size(dir / "in/b.txt"));
  std::vector<int64_t> seen;
  prepare_corpus(data_of(dir / "in"), byte_tokenizer(), dir / "cache", [&](int64_t done, int64_t total) {
    CHECK(total == size);
    CHECK(done <= total);
    seen.push_back(done);
  });
  REQUIRE(seen.size() >= 5);
  CHECK(seen.front() == 0);
  CHECK(std::is_sorted(seen.begin(), seen.end()));

  struct Stop {};
  CHECK_THROWS_AS(prepare_corpus(data_of(dir / "in"), byte_tokenizer(), dir / "other",
                                 [&](int64_t done, int64_t) {
                                   if (done > 0) throw Stop{};
                                 }),
                  Stop);
  CHECK(names_in(dir / "other") == std::vector<std::string>{".lock"});
}

TEST_CASE("corpus: text that is no text, by the name of the file") {
  const TempDir dir;
  write_text(dir / "in/a.txt", made_up_text(10'000));
  write_text(dir / "in/b.txt", "caf\xE9");
  const DataOptions options = data_of(dir / "in", 32, Packing::documents);
  const std::string error =
      error_of([&] { prepare_corpus(options, test::CodePointTokenizer(), dir / "cache"); });
  CHECK(contains(error, (dir / "in/b.txt").string() + ": not UTF-8 at byte 3"));
  CHECK(prepare_corpus(options, byte_tokenizer(), dir / "cache").train->windows() > 0);
}

TEST_CASE("corpus: the fixture by hand") {
  const TempDir dir;
  DataOptions options = data_of(test::source_dir() / "data/fixtures/short.txt", 40, Packing::rows);
  options.valid_fraction = 0.0;
  const Corpus corpus = prepare_corpus(options, byte_tokenizer(), dir / "cache");
  CHECK(corpus.train->counts().documents == 6);
  std::string joined;
  for (const IdWindow& window : windows_of(*corpus.train)) joined += letters_of(window);
  CHECK(joined.starts_with(
      "<The angle of a pair grows with its place in the sentence.><Two words three steps apart"));
  options.packing = Packing::documents;
  const Corpus paragraphs = prepare_corpus(options, byte_tokenizer(), dir / "cache");
  CHECK(paragraphs.train->counts().documents == 3);
  CHECK(letters_of(windows_of(*paragraphs.train)[0]) == "<The angle of a pair grows with its pla>");
  CHECK(letters_of(windows_of(*paragraphs.train)[1]) == "<ce in the sentence.\nTwo words three st>");
}

TEST_CASE("corpus: WikiText-2 and FOLDOC-like folders of real text") {
  const auto data = test::require_data();
  if (!data) return;
  const TempDir dir;
  const fs::path wikitext = *data / "text_en/wikitext-2-raw";
  const auto size = static_cast<int64_t>(fs::file_size(wikitext / "wiki.valid.raw") +
                                         fs::file_size(wikitext / "wiki.test.raw"));
  CHECK(size == Approx(1.15e6 + 1.29e6).epsilon(0.01));
  const Corpus blocks = prepare_corpus(data_of(wikitext, 128), byte_tokenizer(), dir / "cache");
  const auto& train = blocks.train->counts();
  const auto& valid = blocks.valid->counts();
  CHECK(train.bytes + valid.bytes == size);
  CHECK(train.windows == train.bytes / 128);
  CHECK(valid.windows == valid.bytes / 128);
  CHECK(valid.windows >= 128);
  CHECK(train.tokens == train.windows * 128);

  // As text: all of it is UTF-8, and each paragraph or line is there once.
  DataOptions rows = data_of(wikitext, 128, Packing::rows);
  rows.valid_fraction = 0;
  const Corpus lines = prepare_corpus(rows, test::CodePointTokenizer(), dir / "cache");
  int64_t wanted = 0, bytes = 0;
  for (const char* name : {"wiki.valid.raw", "wiki.test.raw"}) {
    std::ifstream in(wikitext / name, std::ios::binary);
    for (std::string line; std::getline(in, line, '\n');) {
      if (line.find_first_not_of(" \t") == std::string::npos) continue;
      ++wanted;
      bytes += static_cast<int64_t>(line.size());
    }
  }
  CHECK(lines.train->counts().documents == wanted);
  CHECK(lines.train->counts().bytes == bytes);

  // CRLF and byte order marks.
  const Corpus books = prepare_corpus(data_of(*data / "text_en/gutenberg", 128, Packing::documents),
                                      test::CodePointTokenizer(), dir / "cache");
  CHECK(books.train->counts().bytes + books.valid->counts().bytes > 7'000'000);
  int64_t carriage_returns = 0, marks = 0;
  for (const IdWindow& window : windows_of(*books.train)) {
    carriage_returns += std::count(window.begin(), window.end(), '\r' + 5);
    marks += std::count(window.begin(), window.end(), 0xFEFF + 5);
  }
  CHECK(carriage_returns == 0);
  CHECK(marks == 0);
}

}  // namespace roformer
