//! `user/c/cops.h` declares in C the interface that the image has in Rust. These tests read the header as text (not
//! every host has a C compiler) and compare every number, layout and prototype in it with the scheduler's. Static
//! assertions in the header compare its structures with its numbers.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

use abi_queue::completion;
use scheduler::{
    Counters, Executor, Header, Hooks, Outcome, ReadyWord, SHARDS, Sharing, Signals, State, StepOf, entry, step_of,
};

const HEADER: &str = include_str!("../../../user/c/cops.h");
const IMAGE: &str = include_str!("../src/lib.rs");

/// Returns the header without its comments.
fn code() -> String {
    let mut code = String::new();
    let mut rest = HEADER;
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        code.push(' ');
        rest = comment.split_once("*/").expect("comments end").1;
    }
    code + rest
}

/// Returns the macros that are defined as numbers.
fn numbers() -> BTreeMap<String, i64> {
    let code = code();
    let number = |line: &str| {
        let (name, value) = line.strip_prefix("#define COPS_")?.split_once(' ')?;
        let value = value.trim().trim_start_matches('(').trim_end_matches(')');
        Some((name.to_string(), value.parse().ok()?))
    };
    code.lines().filter_map(number).collect()
}

#[test]
fn every_number_is_the_scheduler_s() {
    let mut numbers = numbers();
    // Private fields are compared through a header with this layout; see below.
    numbers.retain(|name, _| !name.starts_with("HEADER_") || name == "HEADER_WORDS");
    numbers.retain(|name, _| !name.ends_with("_IN_HEADER_SHIFT"));
    let expected = [
        ("SCHEDULER_MAJOR", i64::from(entry::VERSION >> 16)),
        ("OK", entry::OK as i64),
        ("STALE", entry::STALE as i64),
        ("FULL", entry::FULL as i64),
        ("NONE", entry::NONE as i64),
        ("PENDING", scheduler::PENDING.into()),
        ("YIELDED", scheduler::YIELDED.into()),
        ("DONE", scheduler::DONE.into()),
        ("COMPLETED", scheduler::COMPLETED.into()),
        ("CANCELLED", scheduler::CANCELLED_OUTCOME.into()),
        ("IDLE", Outcome::Idle as i64),
        ("ATTENTION", Outcome::Attention as i64),
        ("RAN", Outcome::Ran as i64),
        ("OUTRANKED", Outcome::Outranked as i64),
        ("READY", State::Ready as i64),
        ("RUNNING", State::Running as i64),
        ("BLOCKED", State::Blocked as i64),
        ("SUSPENDED", State::Suspended as i64),
        ("EAGER", Sharing::Eager as i64),
        ("LAZY", Sharing::Lazy as i64),
        ("PRIORITIES", scheduler::PRIORITIES as i64),
        ("WORKERS", SHARDS as i64),
        ("SLOTS_SIZE", scheduler::CHUNK_BYTES as i64),
        ("SLOTS_IN_CHUNK", scheduler::SLOTS_IN_CHUNK as i64),
        ("CHUNKS", scheduler::CHUNKS as i64),
        ("EXECUTOR_ALIGNMENT", align_of::<Executor>() as i64),
        ("HEADER_WORDS", size_of::<Header>() as i64 / 8),
        ("READY_WORD_SIZE", size_of::<ReadyWord>() as i64),
        ("READY_WORD_READY_OFFSET", offset_of!(ReadyWord, 0) as i64),
        ("READY_WORD_RUNNING_OFFSET", offset_of!(ReadyWord, 1) as i64),
        ("HOOKS_SIZE", size_of::<Hooks>() as i64),
        ("HOOKS_CONTEXT_OFFSET", offset_of!(Hooks, context) as i64),
        ("HOOKS_NOTIFY_OFFSET", offset_of!(Hooks, notify) as i64),
        ("HOOKS_COMPLETIONS_OFFSET", offset_of!(Hooks, completions) as i64),
        ("HOOKS_RESUME_OFFSET", offset_of!(Hooks, resume) as i64),
        ("HOOKS_RELAX_OFFSET", offset_of!(Hooks, relax) as i64),
        ("HOOKS_WORKER_OFFSET", offset_of!(Hooks, worker) as i64),
        ("HOOKS_SHARING_OFFSET", offset_of!(Hooks, sharing) as i64),
        ("SIGNALS_SIZE", size_of::<Signals>() as i64),
        ("SIGNALS_ATTENTION_OFFSET", offset_of!(Signals, attention) as i64),
        ("SIGNALS_COMPLETION_TAIL_OFFSET", offset_of!(Signals, completion_tail) as i64),
        ("SIGNALS_COMPLETION_HEAD_OFFSET", offset_of!(Signals, completion_head) as i64),
        ("COUNTERS_SIZE", size_of::<Counters>() as i64),
        ("COUNTERS_POLLS_OFFSET", offset_of!(Counters, polls) as i64),
        ("COUNTERS_WAKES_OFFSET", offset_of!(Counters, wakes) as i64),
        ("COUNTERS_STEALS_OFFSET", offset_of!(Counters, steals) as i64),
        ("COUNTERS_SPINS_OFFSET", offset_of!(Counters, spins) as i64),
        ("COUNTERS_RETRIES_OFFSET", offset_of!(Counters, retries) as i64),
    ];
    let expected: BTreeMap<String, i64> = expected.into_iter().map(|(name, value)| (name.into(), value)).collect();
    assert_eq!(numbers, expected);
}

#[test]
fn every_layout_is_checked_by_the_compiler() {
    let code = code();
    for name in numbers().keys() {
        // COPS_HOOKS_NOTIFY_OFFSET is the offset of `notify` in `struct cops_hooks`.
        let Some(field) = name.strip_suffix("_OFFSET") else { continue };
        let structures = ["header", "ready_word", "hooks", "signals", "counters"];
        let structure = structures.iter().find(|structure| field.starts_with(&structure.to_uppercase()));
        let structure = structure.expect("offsets are named after their structure");
        let field = field[structure.len() + 1..].to_lowercase();
        let check = format!("COPS_LAYOUT(cops_{structure}, {field}, COPS_{name});");
        assert!(code.contains(&check), "{check}");
        let check = format!("COPS_SIZE(cops_{structure}, COPS_{}_SIZE);", structure.to_uppercase());
        assert!(code.contains(&check), "{check}");
    }
}

#[test]
fn the_completion_ring_is_the_kernel_s() {
    let header = include_str!("../../../user/c/cops_unix.h");
    for (name, value) in [
        ("CAPACITY", completion::INITIAL_CAPACITY),
        ("HEAD_OFFSET", completion::HEAD_OFFSET),
        ("ENTRIES_OFFSET", completion::ENTRIES_OFFSET),
    ] {
        let line = format!("#define COPS_RING_{name} {value}");
        let is_it = |other: &str| other.split(" /*").next() == Some(&line);
        assert!(header.lines().any(is_it), "{name}");
    }
    assert_eq!(completion::TAIL_OFFSET, 0);
    assert_eq!(size_of::<completion::Entry>(), 4 * 8);
    assert!(header.contains("    uint64_t token;\n    uint64_t cid;\n    uint64_t result;\n    uint64_t reserved;\n"));
}

/// Returns the declarations between the braces of a structure.
fn fields(structure: &str) -> Vec<String> {
    let code = code();
    let (_, rest) = code.split_once(&format!("struct {structure} {{")).expect("the structure is there");
    let (body, _) = rest.split_once("};").expect("it ends");
    let fields = body.split(';').map(|field| field.split_whitespace().collect::<Vec<_>>().join(" "));
    fields.filter(|field| !field.is_empty()).collect()
}

/// Returns the C type of a parameter or result, ready for a name after it.
fn c_type(rust: &str) -> String {
    match rust {
        "u32" => "uint32_t ".into(),
        "u64" => "uint64_t ".into(),
        "usize" => "size_t ".into(),
        "isize" => "intptr_t ".into(),
        "*mut c_void" => "void *".into(),
        "*const AtomicU64" => "const uint64_t *".into(),
        "*const [ReadyWord; SHARDS]" => "const struct cops_ready_word *".into(),
        _ => match rust.split_once(' ') {
            Some(("*const", name)) => format!("const struct cops_{} *", name.to_lowercase()),
            Some(("*mut", name)) => format!("struct cops_{} *", name.to_lowercase()),
            _ => panic!("`{rust}` has no translation"),
        },
    }
}

/// Returns the prototype in C of a function of the image.
fn prototype(name: &str) -> String {
    let start = format!("extern \"C\" fn {name}(");
    let (_, rest) = IMAGE.split_once(&start).unwrap_or_else(|| panic!("the image has no {name}"));
    let (signature, _) = rest.split_once(" {\n").expect("it has a body");
    let (parameters, result) = signature.rsplit_once(')').expect("parameters end");
    let result = result.trim().strip_prefix("-> ").map_or("void ".into(), c_type);
    let mut list = Vec::new();
    // Types have a comma nowhere, so commas separate parameters.
    for parameter in parameters.split(',').map(str::trim).filter(|parameter| !parameter.is_empty()) {
        let (name, of_type) = parameter.split_once(": ").expect("a parameter has a type");
        list.push(c_type(of_type) + name);
    }
    let list = if list.is_empty() { "void".into() } else { list.join(", ") };
    format!("{result}(*{})({list})", &name["cops_".len()..])
}

#[test]
fn the_table_has_the_prototypes_of_the_image() {
    let prototypes: Vec<_> = entry::NAMES.iter().map(|name| prototype(name)).collect();
    assert_eq!(fields("cops_table"), prototypes);
    for name in entry::NAMES {
        let entry = format!("X({}, \"{name}\")", &name["cops_".len()..]);
        assert!(HEADER.contains(&entry), "{entry}");
    }
}

static POLLED: AtomicU32 = AtomicU32::new(0);
static FINISHED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn step(header: *mut Header, argument: *mut c_void, cid: u64) -> u32 {
    assert!(!header.is_null());
    match step_of(argument, cid) {
        StepOf::Poll { frame, .. } => {
            assert!(!frame.is_null());
            POLLED.fetch_add(1, Ordering::Relaxed);
        }
        StepOf::Finish { outcome } => {
            assert_eq!(outcome, scheduler::COMPLETED);
            FINISHED.fetch_add(1, Ordering::Relaxed);
        }
    }
    scheduler::DONE
}

/// A control block with the layout of the header's numbers.
struct Block {
    words: Box<[u64]>,
}

impl Block {
    fn place(name: &str) -> usize {
        let offset = usize::try_from(numbers()[&format!("HEADER_{name}_OFFSET")]).unwrap();
        assert_eq!(offset % 8, 0);
        offset / 8
    }

    fn new(kind: u16, priority: u8) -> Block {
        let numbers = numbers();
        let mut block = Block { words: vec![0; numbers["HEADER_WORDS"] as usize].into() };
        block.words[Block::place("STEP")] = step as *const () as u64;
        block.words[Block::place("SLOT")] = u64::from(kind) << numbers["KIND_IN_HEADER_SHIFT"]
            | u64::from(priority) << numbers["PRIORITY_IN_HEADER_SHIFT"];
        block
    }
}

#[test]
fn a_control_block_of_this_layout_is_one_for_the_scheduler() {
    assert_eq!(align_of::<Header>(), 8);
    // A header made by the scheduler's own constructor.
    let made = Header::new(step, 0xbeef, 23);
    // SAFETY: the header consists of words, all of which have a value.
    let made = unsafe { std::slice::from_raw_parts((&raw const made).cast::<u64>(), size_of::<Header>() / 8) };
    assert_eq!(made, &*Block::new(0xbeef, 23).words);

    // The header in use.
    let layout = std::alloc::Layout::from_size_align(entry::executor_size(), 128).unwrap();
    let slots = std::alloc::Layout::from_size_align(scheduler::CHUNK_BYTES, 16).unwrap();
    let ready: [ReadyWord; SHARDS] = Default::default();
    let mut frame = 0u8;
    let mut block = Block::new(0xbeef, 23);
    let header = block.words.as_mut_ptr();
    // SAFETY: the memory is as large and as aligned as is asked for, lives to the end of the block and has no other
    // user; the functions are called as documented.
    unsafe {
        let memory = std::alloc::alloc_zeroed(layout);
        let page = std::alloc::alloc_zeroed(slots);
        let executor = memory.cast::<Executor>();
        vdso::cops_executor_init(executor, &ready, &Hooks::NONE);
        vdso::cops_add_worker(executor, 0, &Signals::NONE);
        assert_eq!(vdso::cops_spawn(executor, header.cast(), 0), 0);
        assert_eq!(vdso::cops_add_slots(executor, page.cast(), 0), entry::OK);
        let cid = vdso::cops_spawn(executor, header.cast(), 0);
        assert!(cid != 0);
        assert_eq!(header.add(Block::place("CID")).read(), cid);
        let slot = header.add(Block::place("SLOT")).read();
        assert!((page.addr() as u64..page.addr() as u64 + slots.size() as u64).contains(&slot));
        for link in 0..2 {
            assert!(header.add(Block::place("LINK") + link).read() != 0);
        }
        assert_eq!(vdso::cops_kind(executor, cid), 0xbeef);
        assert_eq!(vdso::cops_priority(executor, cid), 23);
        assert_eq!(ready[0].0.load(Ordering::Relaxed), 1 << 23);
        assert_eq!(vdso::cops_run(executor, 0, (&raw mut frame).cast()), Outcome::Idle as u32);
        assert_eq!(vdso::cops_wake(executor, cid), entry::STALE);
        assert_eq!(vdso::cops_wake_here(executor, cid, 0), entry::STALE);
        std::alloc::dealloc(page, slots);
        std::alloc::dealloc(memory, layout);
    }
    assert_eq!((POLLED.load(Ordering::Relaxed), FINISHED.load(Ordering::Relaxed)), (1, 1));
}
