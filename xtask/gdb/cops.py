"""Commands of gdb for a machine that runs COPS, or for a core file: `cops coroutines`, `cops ready`, `cops process`.

`cargo xtask run --gdb` writes a file that gdb reads first. It sets the variables that these commands need: the addresses
of the two executors and the offsets of the scheduler's fields, which come from the scheduler itself. So no debug
information about types is needed, and the programs are those that run without gdb.
"""

import gdb

HELD, WOKEN, CANCELLED, SUSPENDED, FREE = 1, 2, 4, 8, 16
WORKERS = 8
SLOTS_IN_CHUNK = 256
LONGEST_NAME = 256
# A name that was made while the program ran: its kind, and the bytes before its text.
MADE = 1
COUNTERS_OF_OWNERS = 16


def variable(name):
    """Returns a variable of the file that gdb has read first."""
    value = gdb.convenience_variable("cops_" + name)
    if value is None:
        raise gdb.GdbError("begin gdb with the file that `cargo xtask run --gdb` names")
    # An address of the kernel looks negative to gdb.
    return int(value) & 0xFFFFFFFFFFFFFFFF


def is_core():
    """Returns whether gdb has a core file of a program, and no machine with a kernel."""
    return variable("kernel") == 0


def bytes_at(address, length):
    """Reads memory. A program's is mapped only on harts that run it, so each hart is asked."""
    before = gdb.selected_thread()
    try:
        for thread in [before] + [other for other in gdb.selected_inferior().threads() if other != before]:
            thread.switch()
            try:
                return bytes(gdb.selected_inferior().read_memory(address, length))
            except gdb.MemoryError:
                continue
    finally:
        before.switch()
    if is_core():
        raise gdb.GdbError("the core file does not have the memory at %#x" % address)
    raise gdb.GdbError("no hart has memory at %#x now: the program does not run, or has not used it yet" % address)


def word(address, length=8):
    return int.from_bytes(bytes_at(address, length), "little")


def symbol_at(address):
    """Returns the full name of the function at an address; empty if there is none."""
    text = gdb.execute("info symbol %#x" % address, to_string=True)
    return "" if text.startswith("No symbol") else text.split(" in section")[0].strip()


def function_at(address):
    """Returns the name of a function with its types, which the line tables have and the symbol table lacks."""
    block = gdb.block_for_pc(address)
    while block is not None and block.function is None:
        block = block.superblock
    return symbol_at(address) if block is None else block.function.name


class Coroutine:
    """A coroutine, as its slot and its control block tell."""

    def __init__(self, index, state, header):
        self.cid = (state >> 32 << 32) | index
        self.state = state
        self.priority = state >> 8 & 63
        self.kind = state >> 16 & 0xFFFF
        self.shard = state >> 5 & 7
        self.header = header
        self.poll = word(header + variable("header_step"))

    def is_awake(self):
        return self.state & (HELD | WOKEN | CANCELLED) != 0

    def name(self):
        """Returns the name that `spawn_named` gave it; empty if it has none."""
        if "names::Named<" not in function_at(self.poll):
            return ""
        # The name comes first in the future: a word that tells its kind, then where the text is, and its length.
        kind, address, length = (word(self.header + variable("future") + at) for at in (0, 8, 16))
        if kind == MADE:
            address += COUNTERS_OF_OWNERS
        return bytes_at(address, min(length, LONGEST_NAME)).decode(errors="replace")

    def describe(self, running):
        if self.cid in running:
            state = "running"
        elif self.state & SUSPENDED:
            state = "preempted"
        elif self.is_awake():
            state = "ready"
        else:
            state = "blocked"
        marks = (", woken" if self.state & WOKEN else "") + (", cancelled" if self.state & CANCELLED else "")
        name = self.name()
        return "%#018x  %-9s priority %2d  worker %d  kind %d%s  %s%s" % (
            self.cid,
            state,
            self.priority,
            self.shard,
            self.kind,
            marks,
            "`%s`  " % name if name else "",
            function_at(self.poll) or "poll at %#x" % self.poll,
        )


class Executor:
    """An executor in the memory of the kernel or of a program."""

    def __init__(self, name):
        self.name = name
        self.address = variable(name)
        if self.address == 0:
            raise gdb.GdbError("the %s has no executor" % name)

    def running(self):
        """Returns the cid that each worker polls, or 0."""
        at = [worker * variable("shard_size") + variable("shard_current") for worker in range(WORKERS)]
        return [word(self.address + offset) for offset in at]

    def coroutines(self):
        chunk = 0
        while True:
            slots = word(self.address + variable("directory") + 8 * chunk)
            if slots == 0:
                return
            size = variable("slot_size")
            page = bytes_at(slots, SLOTS_IN_CHUNK * size)
            for number in range(SLOTS_IN_CHUNK):
                state, header = (
                    int.from_bytes(page[number * size + at : number * size + at + 8], "little")
                    for at in (0, variable("slot_header"))
                )
                if state & FREE == 0 and header != 0:
                    yield Coroutine(chunk * SLOTS_IN_CHUNK + number, state, header)
            chunk += 1


def executor_of(argument):
    name = argument.strip() or "program"
    if name not in ("program", "kernel"):
        raise gdb.GdbError("the executors are `program` and `kernel`, not `%s`" % name)
    return Executor(name)


def show(executor, is_shown):
    running = set(executor.running())
    shown = [coroutine for coroutine in executor.coroutines() if is_shown(coroutine)]
    for coroutine in sorted(shown, key=lambda coroutine: (coroutine.priority, coroutine.cid)):
        print(coroutine.describe(running))
    print("%d coroutines of the %s" % (len(shown), executor.name))


class Cops(gdb.Command):
    """Looks at COPS: its coroutines and its workers."""

    def __init__(self):
        super().__init__("cops", gdb.COMMAND_DATA, prefix=True)


class Coroutines(gdb.Command):
    """cops coroutines [program | kernel]: all coroutines, with the name and the type of each one's future."""

    def __init__(self):
        super().__init__("cops coroutines", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        show(executor_of(argument), lambda coroutine: True)


class Ready(gdb.Command):
    """cops ready [program | kernel]: the coroutines that are ready or run."""

    def __init__(self):
        super().__init__("cops ready", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        show(executor_of(argument), Coroutine.is_awake)


class Process(gdb.Command):
    """cops process: where each hart is, or each thread of a core file, and which coroutine each worker polls, in the kernel and in the program."""

    def __init__(self):
        super().__init__("cops process", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        before = gdb.selected_thread()
        for thread in sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.num):
            thread.switch()
            pc = gdb.newest_frame().pc()
            side = "kernel" if pc >> 63 else "program"
            if is_core():
                print("thread %d: %s" % (thread.ptid[1], symbol_at(pc) or "%#x" % pc))
            else:
                print("hart %d: %s, %s" % (thread.num - 1, side, symbol_at(pc) or "%#x" % pc))
        before.switch()
        for name, kind in (("kernel", "hart"), ("program", "worker")):
            if name == "kernel" and is_core():
                continue
            try:
                running = Executor(name).running()
            except gdb.GdbError as error:
                print("%s: %s" % (name, error))
                continue
            for number, cid in enumerate(running):
                if cid != 0:
                    print("%s: %s %d polls coroutine %#x" % (name, kind, number, cid))


Cops()
Coroutines()
Ready()
Process()
