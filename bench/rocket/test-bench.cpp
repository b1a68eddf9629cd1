// Test bench of Rocket: the core in RTL simulation, with memory of a fixed latency, a console and a power switch.
//
// The core has two AXI4 ports. On `mem` is memory from 0x8000_0000 on, whose first word comes a fixed number of cycles
// after the request, and one more in each cycle after it. On `mmio` are a ROM at 0x1000_0000, to which the core jumps
// after reset, a 16550 at 0x1001_0000 with interrupt 1, and the power switch of QEMU's machines at 0x1002_0000.
//
// Between two lines on the console the test bench prints its own: how many cycles have passed.
//
// Everything is driven between two rising edges of one clock, so a run gives the same cycles each time as long as
// nothing is typed.
//
// With --profile, cycles, instructions and transfers from memory are counted for each address of an instruction, and
// transfers and walks of the page tables for each address that they are about. The counts are written and begun again
// at each line on the console that begins with `bench: `, behind that line: they are those of the measurement that the
// line reports. Waiting is counted at the instruction that ends it.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include "VExampleRocketSystem.h"
#ifdef PROFILE
#include "VExampleRocketSystem___024root.h"
#endif
#include "verilated.h"

#ifdef PROFILE
#define PROFILE_JOINED(walker, port, signal) walker##io_requestor_##port##_req_##signal
#define PROFILE_NAMED(walker, port, signal) PROFILE_JOINED(walker, port, signal)
/// A signal of a port of the walker of page tables.
#define PROFILE_WALK(port, signal) PROFILE_NAMED(PROFILE_WALKER, port, signal)
#endif

namespace {

constexpr uint64_t kMemory = 0x80000000;
constexpr uint64_t kRom = 0x10000000;
constexpr uint64_t kConsole = 0x10010000;
constexpr uint64_t kPower = 0x10020000;
constexpr uint64_t kPart = 0x10000;
/// Bytes of a line of the caches.
constexpr uint64_t kLine = 64;
/// Place of the device tree, below the end of memory.
constexpr uint64_t kRoomForTree = 0x100000;
/// Cycles of a device from request to answer.
constexpr uint64_t kDeviceLatency = 2;
/// Cycles in reset.
constexpr int kReset = 100;
/// Requests that a port takes before it answers the first.
constexpr size_t kOutstanding = 8;
/// Cycles between two lines about the progress, which are printed where a line begins.
constexpr uint64_t kProgress = 1000000;
/// Cycles between two looks for typed characters.
constexpr uint64_t kTyping = 4096;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "rocket: %s\n", why.c_str());
  std::exit(125);
}

std::vector<uint8_t> read_file(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) fail("cannot read " + path + ": " + std::strerror(errno));
  std::vector<uint8_t> content;
  uint8_t part[65536];
  while (size_t size = std::fread(part, 1, sizeof part, file)) content.insert(content.end(), part, part + size);
  if (std::ferror(file)) fail("cannot read " + path);
  std::fclose(file);
  return content;
}

/// The machine's memory.
class Memory {
 public:
  explicit Memory(uint64_t size) : size_(size), bytes_(static_cast<uint8_t*>(std::calloc(size, 1))) {
    if (bytes_ == nullptr) fail("this host has too little memory");
  }

  uint64_t end() const { return kMemory + size_; }

  void put(uint64_t address, const uint8_t* from, uint64_t size, const std::string& what) {
    if (address < kMemory || size > size_ || address - kMemory > size_ - size) fail(what + " does not fit into memory");
    std::memcpy(bytes_ + (address - kMemory), from, size);
  }

  /// Loads the segments of an ELF file at their physical addresses.
  void load_elf(const std::string& path) {
    const std::vector<uint8_t> file = read_file(path);
    Elf64_Ehdr header;
    if (file.size() < sizeof header) fail(path + " is no ELF file");
    std::memcpy(&header, file.data(), sizeof header);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != EM_RISCV) {
      fail(path + " is no ELF file for RISC-V");
    }
    for (int index = 0; index < header.e_phnum; index++) {
      const uint64_t place = header.e_phoff + uint64_t{header.e_phentsize} * index;
      Elf64_Phdr segment;
      if (place > file.size() || file.size() - place < sizeof segment) fail(path + " is cut off");
      std::memcpy(&segment, file.data() + place, sizeof segment);
      if (segment.p_type != PT_LOAD || segment.p_filesz == 0) continue;
      if (segment.p_offset > file.size() || file.size() - segment.p_offset < segment.p_filesz) fail(path + " is cut off");
      put(segment.p_paddr, file.data() + segment.p_offset, segment.p_filesz, path);
    }
  }

  void read(uint64_t address, uint8_t* to, unsigned size) {
    for (unsigned i = 0; i < size; i++) to[i] = address + i < end() && address + i >= kMemory ? at(address + i) : 0;
  }

  void write(uint64_t address, uint8_t value) {
    if (address >= kMemory && address < end()) at(address) = value;
  }

 private:
  uint8_t& at(uint64_t address) { return bytes_[address - kMemory]; }

  uint64_t size_;
  uint8_t* bytes_;
};

/// Counts of one instruction.
struct Count {
  uint64_t cycles = 0;
  uint64_t instructions = 0;
  uint64_t transfers = 0;
};

/// Counts of all instructions since the last line of results.
class Profile {
 public:
  void open(const std::string& path) {
    file_ = std::fopen(path.c_str(), "w");
    if (file_ == nullptr) fail("cannot write " + path + ": " + std::strerror(errno));
  }

  void transfer(uint64_t address) {
    transfers_++;
    lines_[address / kLine * kLine]++;
  }

  /// Counts a walk of the page tables, for code or for data.
  void walk(bool is_code, uint64_t page) {
    // Of 39 bits, the upper of which are all as the highest one.
    const uint64_t address = static_cast<uint64_t>(static_cast<int64_t>(page << 37) >> 25);
    walks_[is_code][address]++;
  }

  void cycle(bool retires, uint64_t address) {
    cycles_++;
    if (!retires) return;
    Count& count = counts_[address];
    count.cycles += cycles_;
    count.instructions++;
    count.transfers += transfers_;
    cycles_ = transfers_ = 0;
  }

  void line(const std::string& text) {
    if (file_ == nullptr) return;
    std::fprintf(file_, "%s\n", text.c_str());
    for (const auto& [address, count] : counts_) {
      std::fprintf(file_, "%llx %llu %llu %llu\n", static_cast<unsigned long long>(address),
                   static_cast<unsigned long long>(count.cycles), static_cast<unsigned long long>(count.instructions),
                   static_cast<unsigned long long>(count.transfers));
    }
    for (const auto& [address, count] : lines_) {
      std::fprintf(file_, "line %llx %llu\n", static_cast<unsigned long long>(address),
                   static_cast<unsigned long long>(count));
    }
    for (const bool is_code : {false, true}) {
      for (const auto& [address, count] : walks_[is_code]) {
        std::fprintf(file_, "%s %llx %llu\n", is_code ? "code" : "data", static_cast<unsigned long long>(address),
                     static_cast<unsigned long long>(count));
      }
      walks_[is_code].clear();
    }
    std::fflush(file_);
    counts_.clear();
    lines_.clear();
  }

 private:
  std::FILE* file_ = nullptr;
  uint64_t cycles_ = 0;
  uint64_t transfers_ = 0;
  std::unordered_map<uint64_t, Count> counts_;
  /// Number of transfers of each line of the caches.
  std::unordered_map<uint64_t, uint64_t> lines_;
  /// Number of walks for each page, of data and of code.
  std::unordered_map<uint64_t, uint64_t> walks_[2];
};

/// A 16550 without FIFO, whose transmitter is always ready.
class Console {
 public:
  Console(Profile& profile, bool is_quiet) : profile_(profile), is_quiet_(is_quiet) {}

  /// Says how far the machine is, unless it is in the middle of a line.
  void progress(uint64_t cycles) {
    if (is_quiet_ || !line_.empty()) return;
    std::printf("rocket: %llu\n", static_cast<unsigned long long>(cycles));
    std::fflush(stdout);
  }

  bool interrupts() const {
    return ((enabled_ & 1) != 0 && !typed_.empty()) || ((enabled_ & 2) != 0 && transmitter_empty_);
  }

  void type() {
    uint8_t bytes[64];
    const ssize_t size = ::read(STDIN_FILENO, bytes, sizeof bytes);
    for (ssize_t i = 0; i < size; i++) typed_.push_back(bytes[i]);
  }

  uint8_t read(unsigned index) {
    const bool divisor = (line_control_ & 0x80) != 0;
    switch (index) {
      case 0: {
        if (divisor) return divisor_ & 0xff;
        if (typed_.empty()) return 0;
        const uint8_t byte = typed_.front();
        typed_.pop_front();
        return byte;
      }
      case 1: return divisor ? divisor_ >> 8 : enabled_;
      case 2:
        if ((enabled_ & 1) != 0 && !typed_.empty()) return 0x04;
        if ((enabled_ & 2) != 0 && transmitter_empty_) {
          transmitter_empty_ = false;
          return 0x02;
        }
        return 0x01;
      case 3: return line_control_;
      case 4: return modem_control_;
      case 5: return 0x60 | (typed_.empty() ? 0 : 1);
      case 6: return 0xb0;
      default: return scratch_;
    }
  }

  void write(unsigned index, uint8_t value) {
    const bool divisor = (line_control_ & 0x80) != 0;
    switch (index) {
      case 0:
        if (divisor) {
          divisor_ = (divisor_ & 0xff00) | value;
        } else {
          print(value);
          transmitter_empty_ = true;
        }
        break;
      case 1:
        if (divisor) {
          divisor_ = (divisor_ & 0xff) | value << 8;
        } else {
          transmitter_empty_ |= (value & 2) != 0 && (enabled_ & 2) == 0;
          enabled_ = value & 0x0f;
        }
        break;
      case 3: line_control_ = value; break;
      case 4: modem_control_ = value; break;
      case 7: scratch_ = value; break;
      default: break;
    }
  }

 private:
  void print(uint8_t byte) {
    std::putchar(byte);
    if (byte != '\n') {
      if (byte != '\r') line_.push_back(static_cast<char>(byte));
      return;
    }
    std::fflush(stdout);
    if (line_.rfind("bench: ", 0) == 0) profile_.line(line_);
    line_.clear();
  }

  Profile& profile_;
  bool is_quiet_;
  std::deque<uint8_t> typed_;
  std::string line_;
  uint16_t divisor_ = 1;
  uint8_t enabled_ = 0, line_control_ = 0, modem_control_ = 0, scratch_ = 0;
  bool transmitter_empty_ = false;
};

/// The devices on the port without a cache.
class Devices {
 public:
  Devices(Console& console, uint64_t tree) : console_(console) {
    // csrr a0, mhartid; auipc t0, 0; ld a1, 20(t0); ld t1, 28(t0); jr t1; nop; the device tree; the firmware.
    const uint32_t code[] = {0xf1402573, 0x00000297, 0x0142b583, 0x01c2b303, 0x00030067, 0x00000013};
    std::memcpy(rom_, code, sizeof code);
    std::memcpy(rom_ + 24, &tree, 8);
    std::memcpy(rom_ + 32, &kMemory, 8);
  }

  void read(uint64_t address, uint8_t* to, unsigned size) {
    for (unsigned i = 0; i < size; i++) {
      const uint64_t byte = address + i;
      to[i] = 0;
      if (byte >= kRom && byte - kRom < sizeof rom_) to[i] = rom_[byte - kRom];
      if (byte >= kConsole && byte - kConsole < 8) to[i] = console_.read(byte - kConsole);
    }
  }

  void write(uint64_t address, uint8_t value) {
    if (address >= kConsole && address - kConsole < 8) console_.write(address - kConsole, value);
    if (address < kPower || address - kPower >= 4) return;
    word_[address - kPower] = value;
    const unsigned status = word_[2] | word_[3] << 8;
    switch (word_[0] | word_[1] << 8) {
      case 0x5555: end_ = 0; break;
      // A failure without a status is still one.
      case 0x3333: end_ = status == 0 ? 1 : static_cast<int>(status & 0xff); break;
      case 0x7777: end_ = 0; break;
      default: break;
    }
  }

  /// Status of the machine, -1 while it runs.
  int end() const { return end_; }

 private:
  Console& console_;
  uint8_t rom_[64] = {};
  uint8_t word_[4] = {};
  int end_ = -1;
};

/// The signals of a port, as references into the model.
template <typename Address, typename Data, typename Strobe>
struct Signals {
  CData &aw_ready, &aw_valid, &aw_id;
  Address& aw_address;
  CData &aw_length, &aw_size;
  CData &w_ready, &w_valid;
  Data& w_data;
  Strobe& w_strobe;
  CData &w_last, &b_ready, &b_valid, &b_id, &b_response;
  CData &ar_ready, &ar_valid, &ar_id;
  Address& ar_address;
  CData &ar_length, &ar_size;
  CData &r_ready, &r_valid, &r_id;
  Data& r_data;
  CData &r_response, &r_last;
};

template <typename Address, typename Data, typename Strobe>
Signals(CData&, CData&, CData&, Address&, CData&, CData&, CData&, CData&, Data&, Strobe&, CData&, CData&, CData&, CData&,
        CData&, CData&, CData&, CData&, Address&, CData&, CData&, CData&, CData&, CData&, Data&, CData&, CData&)
    -> Signals<Address, Data, Strobe>;

#define SIGNALS(top, name)                                                                                           \
  Signals {                                                                                                          \
    top.name##_aw_ready, top.name##_aw_valid, top.name##_aw_bits_id, top.name##_aw_bits_addr,                        \
        top.name##_aw_bits_len, top.name##_aw_bits_size, top.name##_w_ready, top.name##_w_valid,                     \
        top.name##_w_bits_data, top.name##_w_bits_strb, top.name##_w_bits_last, top.name##_b_ready,                  \
        top.name##_b_valid, top.name##_b_bits_id, top.name##_b_bits_resp, top.name##_ar_ready, top.name##_ar_valid,  \
        top.name##_ar_bits_id, top.name##_ar_bits_addr, top.name##_ar_bits_len, top.name##_ar_bits_size,             \
        top.name##_r_ready, top.name##_r_valid, top.name##_r_bits_id, top.name##_r_bits_data,                        \
        top.name##_r_bits_resp, top.name##_r_bits_last                                                               \
  }

/// The far end of a port: requests are answered in their order, the first word after the latency.
template <typename Bus, typename Link>
class Port {
 public:
  Port(Bus& bus, Link link, uint64_t latency) : bus_(bus), link_(link), latency_(latency) {}

  /// Takes what is offered at the rising edge to come. Returns the address of the read that has begun, if one has.
  std::optional<uint64_t> sample(uint64_t now) {
    std::optional<uint64_t> begun;
    if (link_.r_valid && link_.r_ready) {
      Request& read = reads_.front();
      read.address = (read.address & ~uint64_t{read.size - 1}) + read.size;
      has_word_ = false;
      if (--read.left == 0) reads_.pop_front();
    }
    if (link_.b_valid && link_.b_ready) answers_.pop_front();
    if (link_.ar_valid && link_.ar_ready) {
      reads_.push_back({link_.ar_id, link_.ar_address, 1u << link_.ar_size, link_.ar_length + 1u, now + latency_});
      begun = link_.ar_address;
    }
    if (link_.w_valid && link_.w_ready) {
      Request& write = writes_.front();
      store(write.address);
      write.address = (write.address & ~uint64_t{write.size - 1}) + write.size;
      if (link_.w_last) {
        answers_.push_back({write.id, 0, 0, 0, now + latency_});
        writes_.pop_front();
      }
    }
    if (link_.aw_valid && link_.aw_ready) {
      writes_.push_back({link_.aw_id, link_.aw_address, 1u << link_.aw_size, link_.aw_length + 1u, 0});
    }
    return begun;
  }

  /// Sets what the core sees after the rising edge.
  void drive(uint64_t now) {
    link_.ar_ready = reads_.size() < kOutstanding;
    link_.aw_ready = writes_.size() < kOutstanding;
    link_.w_ready = !writes_.empty();
    link_.b_valid = !answers_.empty() && answers_.front().at <= now;
    if (link_.b_valid) link_.b_id = answers_.front().id;
    link_.b_response = 0;
    link_.r_valid = !reads_.empty() && reads_.front().at <= now;
    link_.r_response = 0;
    if (!link_.r_valid) return;
    const Request& read = reads_.front();
    link_.r_id = read.id;
    link_.r_last = read.left == 1;
    if (!has_word_) {
      uint8_t word[kWidth] = {};
      const unsigned lane = read.address % kWidth;
      bus_.read(read.address, word + lane, std::min<unsigned>(read.size, kWidth - lane));
      std::memcpy(&link_.r_data, word, kWidth);
      has_word_ = true;
    }
  }

 private:
  struct Request {
    uint8_t id;
    uint64_t address;
    unsigned size;
    unsigned left;
    uint64_t at;
  };

  static constexpr unsigned kWidth = sizeof(std::declval<Link>().r_data);

  void store(uint64_t address) {
    uint8_t word[kWidth];
    std::memcpy(word, &link_.w_data, kWidth);
    const uint64_t base = address & ~uint64_t{kWidth - 1};
    for (unsigned lane = 0; lane < kWidth; lane++) {
      if ((link_.w_strobe >> lane & 1) != 0) bus_.write(base + lane, word[lane]);
    }
  }

  Bus& bus_;
  Link link_;
  uint64_t latency_;
  /// Whether the current word of a read was fetched: a device notices each reading.
  bool has_word_ = false;
  std::deque<Request> reads_, writes_, answers_;
};

struct Options {
  std::string firmware, kernel, initramfs, tree, profile;
  uint64_t memory = 128, latency = 30, initramfs_at = 0;
  bool typing = false;
};

constexpr const char kUsage[] =
    "usage: rocket --firmware FILE --kernel ELF --tree DTB [--initramfs FILE --initramfs-at ADDRESS] [--memory MIB]\n"
    "              [--latency CYCLES] [--typing] [--profile FILE]\n";

Options parse(int count, char** words) {
  Options options;
  for (int i = 1; i < count; i++) {
    const std::string word = words[i];
    if (word == "--typing") {
      options.typing = true;
      continue;
    }
    if (word == "--help") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    if (++i == count) fail(word + " has no value\n" + kUsage);
    const auto number = [&] {
      char* end = nullptr;
      const uint64_t value = std::strtoull(words[i], &end, 0);
      if (*end != 0) fail(word + " is followed by a number");
      return value;
    };
    if (word == "--firmware") options.firmware = words[i];
    else if (word == "--kernel") options.kernel = words[i];
    else if (word == "--initramfs") options.initramfs = words[i];
    else if (word == "--tree") options.tree = words[i];
    else if (word == "--profile") options.profile = words[i];
    else if (word == "--initramfs-at") options.initramfs_at = number();
    else if (word == "--memory") options.memory = number();
    else if (word == "--latency") options.latency = number();
    else fail("unknown option " + word + "\n" + kUsage);
  }
  if (options.firmware.empty() || options.kernel.empty() || options.tree.empty()) fail(std::string("no machine\n") + kUsage);
  return options;
}

}  // namespace

int main(int count, char** words) {
  const Options options = parse(count, words);
  Memory memory(options.memory << 20);
  const auto load = [&](const std::string& path, uint64_t address) {
    const std::vector<uint8_t> content = read_file(path);
    memory.put(address, content.data(), content.size(), path);
  };
  load(options.firmware, kMemory);
  memory.load_elf(options.kernel);
  if (!options.initramfs.empty()) load(options.initramfs, options.initramfs_at);
  const uint64_t tree = memory.end() - kRoomForTree;
  load(options.tree, tree);

  Profile profile;
  if (!options.profile.empty()) {
#ifdef PROFILE
    profile.open(options.profile);
#else
    fail("this model was built without --profile");
#endif
  }
  if (options.typing) ::fcntl(STDIN_FILENO, F_SETFL, ::fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);

  VerilatedContext context;
  VExampleRocketSystem top(&context);
  Console console(profile, options.typing);
  Devices devices(console, tree);
  Port port(memory, SIGNALS(top, mem_axi4_0), options.latency);
  Port io(devices, SIGNALS(top, mmio_axi4_0), kDeviceLatency);

  // The debug module sees the clock during reset only: nobody debugs.
  top.reset = top.debug_reset = top.debug_clockeddmi_dmiReset = 1;
  for (int cycle = 0; cycle < kReset; cycle++) {
    for (const int level : {0, 1}) {
      top.clock = top.debug_clock = top.debug_clockeddmi_dmiClock = level;
      top.eval();
    }
  }
  top.reset = top.debug_reset = top.debug_clockeddmi_dmiReset = 0;

  const auto begin = std::chrono::steady_clock::now();
  uint64_t now = 0;
  for (; devices.end() < 0; now++) {
    port.drive(now);
    io.drive(now);
    top.interrupts = console.interrupts() ? 1 : 0;
    top.clock = 0;
    top.eval();
    const std::optional<uint64_t> transfer = port.sample(now);
    io.sample(now);
#ifdef PROFILE
    if (transfer) profile.transfer(*transfer);
    if (top.rootp->PROFILE_WALK(0, ready) && top.rootp->PROFILE_WALK(0, valid)) {
      profile.walk(false, top.rootp->PROFILE_WALK(0, bits_bits_addr));
    }
    if (top.rootp->PROFILE_WALK(1, ready) && top.rootp->PROFILE_WALK(1, valid)) {
      profile.walk(true, top.rootp->PROFILE_WALK(1, bits_bits_addr));
    }
    profile.cycle(top.rootp->PROFILE_VALID, top.rootp->PROFILE_PC);
#else
    (void)transfer;
#endif
    top.clock = 1;
    top.eval();
    if (options.typing && now % kTyping == 0) console.type();
    if (now % kProgress == kProgress - 1) console.progress(now + 1);
  }
  std::fflush(stdout);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::fprintf(stderr, "rocket: %llu cycles in %.0f s\n", static_cast<unsigned long long>(now), seconds.count());
  top.final();
  return devices.end();
}
