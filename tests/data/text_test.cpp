#include "roformer/data/text.h"

#include <sys/stat.h>

#include "tests/data/text_support.h"
#include "tests/support.h"

namespace roformer {
namespace {

using std::string_literals::operator""s;
namespace fs = std::filesystem;
using test::contains;
using test::error_of;
using test::TempDir;
using test::write_gzip;
using test::write_text;

using DocumentList = std::vector<std::string>;

DocumentList documents_of(const fs::path& file, Packing packing, bool needs_text = false) {
  DocumentReader reader(file, packing, needs_text);
  DocumentList documents;
  for (std::string document; reader.next(document);) documents.push_back(document);
  std::string again;
  CHECK_FALSE(reader.next(again));  // the end stays the end
  return documents;
}

std::string joined(const DocumentList& documents) {
  std::string all;
  for (const std::string& document : documents) all += document;
  return all;
}

}  // namespace

TEST_CASE("reader: paragraphs and lines") {
  const TempDir dir;
  const std::string text = "\n \none\ntwo \n\t \n\n\nthree\n\nfour";
  const fs::path lf = write_text(dir / "lf.txt", text);
  CHECK(documents_of(lf, Packing::documents) == DocumentList{"one\ntwo ", "three", "four"});
  CHECK(documents_of(lf, Packing::rows) == DocumentList{"one", "two ", "three", "four"});
  CHECK(documents_of(lf, Packing::windows) == DocumentList{text});

  std::string with_cr;
  for (const char c : text) with_cr += c == '\n' ? "\r\n"s : std::string(1, c);
  const fs::path crlf = write_text(dir / "crlf.txt", with_cr);
  CHECK(documents_of(crlf, Packing::documents) == documents_of(lf, Packing::documents));
  CHECK(documents_of(crlf, Packing::rows) == documents_of(lf, Packing::rows));
  CHECK(documents_of(crlf, Packing::windows) == DocumentList{with_cr});
}

TEST_CASE("reader: a byte order mark is no text, except for windows of bytes") {
  const TempDir dir;
  const fs::path file = write_text(dir / "bom.txt", "\xEF\xBB\xBFone\n\ntwo");
  CHECK(documents_of(file, Packing::documents) == DocumentList{"one", "two"});
  CHECK(documents_of(file, Packing::rows) == DocumentList{"one", "two"});
  CHECK(documents_of(file, Packing::windows, true) == DocumentList{"one\n\ntwo"});
  CHECK(documents_of(file, Packing::windows, false) == DocumentList{"\xEF\xBB\xBFone\n\ntwo"});
  CHECK(documents_of(write_text(dir / "only.txt", "\xEF\xBB\xBF"), Packing::documents).empty());
}

TEST_CASE("reader: blocks of 64 KiB") {
  const TempDir dir;
  constexpr size_t block = DocumentReader::block_bytes;
  for (const size_t size : {size_t{0}, size_t{1}, block - 1, block, block + 1, 5 * block, 5 * block + 7}) {
    const std::string text = test::made_up_text(size).substr(0, size);
    const fs::path file = write_text(dir / "t.txt", text);
    for (const bool needs_text : {false, true}) {
      const DocumentList blocks = documents_of(file, Packing::windows, needs_text);
      CHECK(joined(blocks) == text);
      if (!needs_text) CHECK(blocks.size() == (size + block - 1) / block);
      for (size_t i = 0; i + 1 < blocks.size(); ++i) {
        if (!needs_text) CHECK(blocks[i].size() == block);
        CHECK(blocks[i].size() <= block);
        CHECK(blocks[i].size() > block - 4096);
        if (needs_text) CHECK((blocks[i].back() == ' ' || blocks[i].back() == '\n'));
      }
    }
  }
}

TEST_CASE("reader: endless lines and paragraphs come in pieces, cut between words or characters") {
  const TempDir dir;
  constexpr size_t most = DocumentReader::document_bytes;
  std::string words, characters;
  while (words.size() < 3 * most + 12'345) words += "word" + std::to_string(words.size() % 977) + " ";
  while (characters.size() < 2 * most + 12'345) characters += "語";
  for (const Packing packing : {Packing::documents, Packing::rows}) {
    for (const std::string& text : {words, characters}) {
      const DocumentList pieces =
          documents_of(write_text(dir / "long.txt", "a\n\n" + text + "\n\nz"), packing, true);
      REQUIRE(pieces.size() >= 4);
      CHECK(pieces.front() == "a");
      CHECK(pieces.back() == "z");
      CHECK(joined({pieces.begin() + 1, pieces.end() - 1}) == text);
      for (const std::string& piece : pieces) CHECK(piece.size() <= most);
      if (text == words) CHECK(pieces[1].back() == ' ');
    }
  }
  // A paragraph of many short lines is cut between lines.
  const std::string lines = test::made_up_text(3 * most);
  std::string paragraph;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i] != '\n' || i == 0 || lines[i - 1] != '\n') paragraph += lines[i];
  }
  const DocumentList parts = documents_of(write_text(dir / "p.txt", paragraph), Packing::documents);
  CHECK(parts.size() >= 3);
  std::string all;
  for (const std::string& part : parts) all += part + "\n";
  CHECK(all == paragraph);
}

TEST_CASE("reader: packed text reads like plain text, members in a row too") {
  const TempDir dir;
  const std::string first = test::made_up_text(700'000, 1), second = test::made_up_text(300'000, 2);
  const fs::path plain = write_text(dir / "t.txt", first + second);
  const fs::path packed = write_gzip(dir / "t.txt.gz", first);
  write_gzip(packed, second, true);
  const fs::path dictionary = dir / "t.dict.dz";
  fs::copy_file(packed, dictionary);
  for (const Packing packing : {Packing::windows, Packing::documents, Packing::rows}) {
    const DocumentList wanted = documents_of(plain, packing);
    CHECK(documents_of(packed, packing) == wanted);
    CHECK(documents_of(dictionary, packing) == wanted);
  }
  CHECK(documents_of(write_gzip(dir / "empty.gz", ""), Packing::windows).empty());
  CHECK(documents_of(write_text(dir / "nothing.gz", ""), Packing::windows).empty());
}

TEST_CASE("reader: damaged gzip files are named") {
  const TempDir dir;
  const std::string text = test::made_up_text(500'000);
  const fs::path good = write_gzip(dir / "good.gz", text);
  std::string bytes(fs::file_size(good), '\0');
  std::ifstream(good, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const auto error_with = [&](const std::string& changed) {
    const fs::path bad = write_text(dir / "bad.gz", changed);
    const std::string error = error_of([&] { documents_of(bad, Packing::windows); });
    CHECK(contains(error, bad.string()));
    CHECK_FALSE(contains(error, "\n"));
    return error;
  };
  CHECK(error_of([&] { documents_of(good, Packing::windows); }).empty());
  CHECK(contains(error_with(bytes.substr(0, bytes.size() / 2)), "cut off"));
  CHECK(contains(error_with(bytes.substr(0, bytes.size() - 3)), "cut off"));
  std::string flipped = bytes;
  flipped[bytes.size() / 2] = static_cast<char>(flipped[bytes.size() / 2] ^ 0x55);
  CHECK(contains(error_with(flipped), "damaged gzip"));
  CHECK(contains(error_with(text), "not a gzip file"));
}

TEST_CASE("reader: what is no UTF-8 text is named with its place") {
  const TempDir dir;
  const std::string before = test::made_up_text(300'000);
  const auto error_with = [&](const std::string& bad, Packing packing, bool packed) {
    const fs::path file =
        packed ? write_gzip(dir / "t.gz", before + bad) : write_text(dir / "t.txt", before + bad);
    CHECK(error_of([&] { documents_of(file, packing, false); }).empty());  // bytes take anything
    const std::string error = error_of([&] { documents_of(file, packing, true); });
    if (!error.empty()) CHECK(contains(error, file.string() + ": "));
    CHECK_FALSE(contains(error, "\n"));
    return error;
  };
  for (const Packing packing : {Packing::windows, Packing::documents, Packing::rows}) {
    const std::string place = std::to_string(before.size() + 2);
    CHECK(contains(error_with("ab\xE4gypten\n", packing, false), "not UTF-8 at byte " + place + ";"));
    CHECK(contains(error_with("\r\n\xE4", packing, true), "byte " + place + " of the unpacked text"));
    CHECK(contains(error_with("ab\0cd"s, packing, false), "byte " + place + " is NUL"));
    CHECK(contains(error_with("ab\xE2\x82", packing, false), "not UTF-8 at byte " + place));
    CHECK(error_with("ä€😀", packing, false).empty());
  }
}

TEST_CASE("reader: characters at the edge of a buffer or a block stay whole") {
  const TempDir dir;
  for (size_t shift = 0; shift < 4; ++shift) {
    std::string text(shift, 'x');
    while (text.size() < 600'000) text += "😀";
    const fs::path file = write_text(dir / "t.txt", text);
    for (const Packing packing : {Packing::windows, Packing::documents}) {
      CHECK(joined(documents_of(file, packing, true)) == text);
    }
  }
}

TEST_CASE("cut point: behind white space, else between characters") {
  CHECK(cut_point("one two three", 9) == 8);
  CHECK(cut_point("one two three", 8) == 8);
  CHECK(cut_point("abcdef", 3) == 3);
  CHECK(cut_point("aé", 2) == 1);
  CHECK(cut_point("a😀", 4) == 1);
  CHECK(cut_point("\x80\x80\x80\x80\x80\x80", 5) == 5);
  CHECK(cut_point(std::string(5000, 'a') + " b", 4999) == 4999);
  CHECK(cut_point("é", 1) == 0);
}

TEST_CASE("files: a folder gives its texts in a fixed order") {
  const TempDir dir;
  for (const char* name :
       {"b.txt", "a/z.txt", "a/y.raw", "c.gz", "noextension", ".hidden", ".git/config", "d/.x"}) {
    write_text(dir.path() / "corpus" / name, "text");
  }
  write_text(dir / "corpus/picture.png", "PNG\0\0\0\x0D"s);
  write_text(dir / "corpus/archive.tar.gz", "x");
  const fs::path root = dir / "corpus";
  const std::vector<fs::path> wanted = {root / "a/y.raw", root / "a/z.txt", root / "b.txt", root / "c.gz",
                                        root / "noextension"};
  CHECK(list_text_files({root}) == wanted);
  // Named files are taken as named, in the order given.
  CHECK(list_text_files({root / "b.txt", root / "a"}) ==
        std::vector<fs::path>{root / "b.txt", root / "a/y.raw", root / "a/z.txt"});
  CHECK(list_text_files({root / ".hidden"}) == std::vector<fs::path>{root / ".hidden"});
}

TEST_CASE("files: what cannot be read is named") {
  const TempDir dir;
  fs::create_directories(dir / "empty/.git");
  const auto error_with = [&](const fs::path& path) {
    const std::string error = error_of([&] { list_text_files({path}); });
    CHECK(contains(error, path.string()));
    CHECK_FALSE(contains(error, "\n"));
    return error;
  };
  CHECK(contains(error_with(dir / "missing.txt"), "No such file"));
  CHECK(contains(error_with(dir / "empty"), "no text files"));
  const fs::path pipe = dir / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(contains(error_with(pipe), "neither a file nor a folder"));
  CHECK(
      contains(error_of([&] { DocumentReader(dir / "missing.txt", Packing::rows, false); }), "missing.txt"));
}

TEST_CASE("data options read from YAML") {
  const auto read_data = [](const char* yaml) {
    DataOptions options;
    read(parse_config(yaml, "test.yaml", "/base"), options, "data");
    return options;
  };
  const DataOptions one = read_data("{train: corpus, length: 64, packing: rows}");
  CHECK(one.train == std::vector<fs::path>{"/base/corpus"});
  CHECK(one.valid.empty());
  CHECK(one.length == 64);
  CHECK(one.packing == Packing::rows);
  CHECK(read_data("{train: [a.txt, b.gz], valid: c}").train.size() == 2);
  CHECK(contains(error_of([&] { read_data("{length: 64}"); }), "train"));
  CHECK(contains(error_of([&] { read_data("{train: a, lenght: 64}"); }), "length"));
  CHECK(contains(error_of([&] { read_data("{train: a, length: 2}"); }), "length"));
  CHECK(contains(error_of([&] { read_data("{train: a, packing: row}"); }), "rows"));
  CHECK(contains(error_of([&] { read_data("{train: a, valid_fraction: 1.0}"); }), "valid_fraction"));

  const auto bytes = make_tokenizer(BytesOptions{});
  CHECK(resolve(Packing::automatic, *bytes) == Packing::windows);
  CHECK(resolve(Packing::automatic, test::CodePointTokenizer()) == Packing::documents);
  CHECK(resolve(Packing::rows, *bytes) == Packing::rows);
}

}  // namespace roformer
