//! The acts of this program as another process of a test: ending in a certain way, faulting, scribbling, hanging.

use core::future::Future;
use core::sync::atomic::{AtomicU64, Ordering};

use abi_unix::types::auxiliary;
use cops::system;
use cops::time::{Duration, Instant};

use crate::harness::told;

/// Leaves names, a span, a mark and a counter in the trace, and a wake of a coroutine by another.
async fn traced() -> i32 {
    let (sender, receiver) = cops::channel::unbounded();
    let consumer = cops::spawn_named("traced consumer", async move {
        let mut sum = 0;
        while let Some(number) = receiver.receive().await {
            let _span = cops::trace::span("traced span");
            sum += number;
            cops::trace::counter("traced sum", sum);
            cops::yield_now().await;
        }
        cops::trace::mark("traced mark");
        sum
    });
    let producer = cops::spawn(async move {
        for number in [1i64, 2, 3] {
            cops::sleep(Duration::from_millis(1)).await;
            let _ = sender.send(number).await;
        }
    });
    let _ = producer.await;
    i32::from(consumer.await != Ok(6))
}

/// Does the named act, and returns the exit status if it comes to an end.
pub async fn act(name: &str, argument: Option<&str>) -> i32 {
    match name {
        "exit" => argument.and_then(|text| text.parse().ok()).unwrap_or(0),
        "panic" => panic!("as it was asked to"),
        "panic-named" => {
            let _ = cops::spawn_named(alloc::format!("connection {}", 7), async { panic!("as it was asked to") }).await;
            0
        }
        "return" => 7,
        "sleep" => {
            cops::sleep(Duration::from_secs(1000)).await;
            1
        }
        "traced" => traced().await,
        "poll-many" => crate::long::poll_many().await,
        "allocation" => crate::allocation::act(argument.unwrap_or("")),
        "wait-often" => crate::long::wait_often().await,
        "use-processor" => {
            while system::process::processor_time(system::process::UsageOf::Process) < Duration::from_millis(30) {}
            0
        }
        "spin" => loop {
            core::hint::spin_loop();
        },
        "spin-unimportant" => {
            let _ = cops::set_priority(cops::current(), cops::Priority::saturating(60));
            cops::yield_now().await;
            loop {
                core::hint::spin_loop();
            }
        }
        "answer-interrupts" => {
            let rounds = argument.and_then(|text| text.parse().ok()).unwrap_or(1);
            crate::user_interrupt::answer(rounds).await
        }
        "flood" => crate::user_interrupt::send_until_error(None).await,
        "send-until-error" => crate::user_interrupt::send_until_error(Some(Duration::from_micros(200))).await,
        "send-and-count" => crate::user_interrupt::send_and_count(),
        "revoke-descriptor-0" => crate::user_interrupt::revoke_descriptor_0(),
        "claim-without-file" => crate::user_interrupt::claim_without_file(),
        "send-without-right" => crate::user_interrupt::send_without_right(argument).await,
        "misuse-own-slot" => crate::user_interrupt::misuse_own_slot().await,
        "faulting-handler" => crate::user_interrupt::faulting_handler().await,
        "handler-without-stack" => crate::user_interrupt::handler_without_stack().await,
        "terminal" => crate::terminal::act(argument.unwrap_or("")),
        "pseudo-terminal" => crate::pseudo_terminal::act(argument.unwrap_or("")),
        "others" => crate::authority::others(argument),
        "end-all-processes" => crate::authority::end_all_processes().await,
        "leave-a-sleeper" => crate::authority::leave_a_sleeper(),
        "descend" => crate::authority::descend().await,
        "brink" => crate::brink::act(argument.unwrap_or("")).await,
        "fairness" => crate::fairness::act(argument.unwrap_or("")).await,
        "scheduling" => crate::scheduling::act(argument.unwrap_or("")).await,
        "read-null" => read(8),
        "read-kernel" => read(0xffff_ffc0_8020_0000),
        "read-image" => i32::from(read(told(auxiliary::SYSINFO_EHDR)) == 0),
        "write-image" => write(told(auxiliary::SYSINFO_EHDR)),
        "write-global-page" => write(told(auxiliary::COPS_GLOBAL_PAGE)),
        "write-code" => write(act_code()),
        "write-constant" => write("constant".as_ptr() as usize),
        "execute-data" => {
            static DATA: [u32; 2] = [0x0000_8067, 0]; // ret
            execute(&raw const DATA as usize)
        }
        "execute-heap" => {
            let code = alloc::boxed::Box::new(0x0000_8067u32);
            execute(&raw const *code as usize)
        }
        "illegal-instruction" => {
            // SAFETY: the process ends here, as the test intends.
            unsafe { core::arch::asm!("unimp") };
            0
        }
        "privileged-instruction" => crate::privilege::try_instruction(argument),
        "own-translation" => crate::privilege::translate_for_itself(),
        "leave-registers" => crate::privilege::leave_registers(),
        "find-registers" => crate::privilege::find_registers(),
        "lower-privilege" => crate::privilege::lower_privilege(),
        "breakpoint" => {
            // SAFETY: as above.
            unsafe { core::arch::asm!("ebreak") };
            0
        }
        "tell-addresses" => crate::layout::tell(),
        "overflow-stack" => overflow(1) as i32,
        "unmap-everything" => {
            // SAFETY: the process ends here, as the test intends.
            let _ = unsafe { system::memory::unmap(0x10000 as *mut u8, 0xf_ffff_0000) };
            0
        }
        "die-large" => {
            let memory: alloc::vec::Vec<u8> = alloc::vec![1; 32 << 20];
            read(core::hint::black_box(memory).len() & 8)
        }
        "exhaust-memory" => exhaust(),
        "hoard-in-pipes" => hoard_in_pipes(bytes(argument)).await,
        "hoard-in-connections" => hoard_in_connections(bytes(argument)).await,
        "hoard-sockets" => hoard_sockets().await,
        "hoard-in-file" => hoard_in_file(bytes(argument)).await,
        "hoard-pipes-within" => within(bytes(argument), hoard_in_pipes(usize::MAX)).await,
        "hoard-files-within" => within(bytes(argument), hoard_in_file(usize::MAX)).await,
        "hoard-calls" => hoard_calls().await,
        "hoard-calls-within" => within(bytes(argument), hoard_calls()).await,
        "wait-at-one-place" => {
            cops::spawn_named("waiter", wait_for_ever()).detach();
            wait_for_ever().await;
            0
        }
        "raise-limits" => crate::accounts::raise_limits(),
        "read-and-sleep" => {
            let file = cops::file::File::open(argument.unwrap_or("/"));
            keep(file).await
        }
        "exit-together" => crate::edges::end_together(false).await,
        "exit-group-together" => crate::edges::end_together(true).await,
        "restart" => {
            cops::println!("restarting");
            i32::from(system::system::restart().is_err())
        }
        "use-volume" | "write-volume" | "map-volume" | "run-from-volume" | "end-on-volume" => {
            crate::ext4::act(name).await
        }
        "storm-volume" => crate::storm::act(bytes(argument) as u64),
        "use-disk" | "write-disk" | "check-disk" => crate::disk::act(name).await,
        "use-share" => crate::share::act().await,
        "touch" => touch(bytes(argument)),
        "orphan" => orphan().await,
        "execute-other" => execute_other(),
        "calls-in-flight" => calls_in_flight().await,
        "scribble-bitmap" => scribble_bitmap(),
        "scribble-ring" => scribble_ring().await,
        "leave-unimportant-calls" => leave_unimportant_calls(),
        "ring-calls-in-flight" => crate::ring::acts::calls_in_flight().await,
        "ring-exit" => crate::ring::acts::exit().await,
        "ring-execute" => crate::ring::acts::execute().await,
        "scribble-request-ring" => {
            crate::ring::acts::scribble(argument.and_then(|text| text.parse().ok()).unwrap_or(1)).await
        }
        "echo-arguments" => echo_arguments(),
        aside if aside.starts_with("aside-") => {
            crate::preemption::end_while_others_are_aside(&aside["aside-".len()..]).await
        }
        signals if signals.starts_with("signals-") => crate::signals::act(signals),
        models if models.starts_with("models-") => crate::models::act(models).await,
        threads if threads.starts_with("threads-") => crate::thread::act(threads),
        other => {
            cops::eprintln!("there is no act `{other}`");
            99
        }
    }
}

fn act_code() -> usize {
    read as *const () as usize
}

#[inline(never)]
fn read(address: usize) -> i32 {
    // SAFETY: either the memory is mapped, or the process ends here.
    i32::from(unsafe { (address as *const u8).read_volatile() })
}

#[inline(never)]
fn write(address: usize) -> i32 {
    // SAFETY: the process ends here, as the tests intend. If it does not, they fail.
    unsafe { (address as *mut u8).write_volatile(0) };
    0
}

fn execute(address: usize) -> i32 {
    // SAFETY: the process ends here, as the tests intend.
    let code: extern "C" fn() = unsafe { core::mem::transmute(address) };
    code();
    0
}

#[expect(unconditional_recursion, reason = "the stack is to overflow")]
fn overflow(depth: u64) -> u64 {
    let mut frame = [depth; 64];
    core::hint::black_box(&mut frame);
    overflow(depth + 1) + frame[3]
}

/// Takes memory until there is no more, and touches all of it.
fn exhaust() -> i32 {
    let mut total = 0usize;
    while let Ok(memory) = system::memory::map(1 << 20) {
        for page in 0..256 {
            // SAFETY: the mapping is ours and has that many pages.
            unsafe { memory.add(page * 4096).write_volatile(1) };
        }
        total += 1;
        if total > 1 << 20 {
            return 1;
        }
    }
    // The kernel refused in time.
    0
}

/// Parses a number of bytes.
fn bytes(argument: Option<&str>) -> usize {
    argument.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Reports that the memory is taken, and keeps it.
async fn keep<T>(held: T) -> i32 {
    cops::println!("ready");
    cops::sleep(Duration::from_secs(1000)).await;
    drop(held);
    1
}

/// Runs a hoarder with a limit on kernel memory and on memory of files.
async fn within(bytes: usize, hoard: impl Future<Output = i32>) -> i32 {
    use abi_unix::types::limit;
    for which in [limit::KERNEL_MEMORY, limit::FILE_MEMORY] {
        if system::process::set_limit(0, which, bytes as u64, bytes as u64).is_err() {
            return 1;
        }
    }
    hoard.await
}

/// Makes calls that end late, until the kernel refuses more.
async fn hoard_calls() -> i32 {
    let time = abi_unix::types::TimeSpec::from_ns(1_000_000_000_000);
    let mut count = 0;
    loop {
        let (number, arguments) = (system::SystemCall::Sleep as usize, [&raw const time as usize, 0, 0, 0, 0, 0]);
        // SAFETY: the kernel reads the time before it answers.
        if unsafe { system::syscall_asynchronous(number, arguments, 0, 63, 0) } != abi_unix::WILL_BE_POSTED {
            break;
        }
        count += 1;
    }
    keep(count).await
}

/// Fills pipes that have no reading coroutine.
async fn hoard_in_pipes(bytes: usize) -> i32 {
    let mut pipes = alloc::vec::Vec::new();
    let mut taken = 0;
    while taken < bytes {
        let Ok((reader, writer)) = cops::io::pipe() else { break };
        let Ok(count) = system::file::write(writer.descriptor().raw(), &[1; 65536]) else { break };
        taken += count;
        pipes.push((reader, writer));
    }
    keep(pipes).await
}

/// Fills connections that are never received from.
async fn hoard_in_connections(bytes: usize) -> i32 {
    use cops::net::{TcpListener, TcpStream};
    let address = core::net::SocketAddrV4::new(core::net::Ipv4Addr::LOCALHOST, 0);
    let Ok(listener) = TcpListener::bind(address) else { return 1 };
    let Ok(address) = listener.local_address() else { return 1 };
    let (level, option) = (abi_unix::types::socket_option::SOL_SOCKET, abi_unix::types::socket_option::SO_RCVBUF);
    if system::network::set_option(listener.descriptor().raw(), level, option, 1 << 20).is_err() {
        return 1;
    }
    let mut connections = alloc::vec::Vec::new();
    let mut taken = 0;
    while taken < bytes {
        let (Ok(client), Ok((server, _))) = (TcpStream::connect(address).await, listener.accept().await) else { break };
        let flags = abi_unix::types::message::DONTWAIT;
        while let Ok(count) = system::network::send_to(client.descriptor().raw(), &[1; 4096], flags, None) {
            taken += count;
        }
        connections.push((client, server));
    }
    keep((listener, connections)).await
}

/// Takes as many datagram sockets as possible.
async fn hoard_sockets() -> i32 {
    let mut sockets = alloc::vec::Vec::new();
    while let Ok(socket) = system::network::socket(abi_unix::types::SOCK_DGRAM) {
        sockets.push(socket);
    }
    keep(sockets).await
}

/// Fills a file that has no name any more.
async fn hoard_in_file(bytes: usize) -> i32 {
    use abi_unix::types::open;
    let Ok(file) = cops::file::File::open_with("/tmp/hoard", open::CREAT | open::WRONLY) else { return 1 };
    // Files may have less than the other acts take.
    if cops::file::remove("/tmp/hoard").is_err() || bytes != usize::MAX && touch(bytes / 5) != 0 {
        return 1;
    }
    let bytes = bytes / 5 * 4;
    let mut taken = 0;
    while taken < bytes {
        let Ok(count @ 1..) = system::file::write(file.descriptor().raw(), &[1; 65536]) else { break };
        taken += count;
    }
    keep(file).await
}

/// Touches this many bytes of memory.
fn touch(bytes: usize) -> i32 {
    let Ok(memory) = system::memory::map(bytes) else { return 1 };
    for page in 0..bytes / 4096 {
        // SAFETY: the mapping is ours and has that many pages.
        unsafe { memory.add(page * 4096).write_volatile(1) };
    }
    0
}

/// Starts a process that outlives this one.
async fn orphan() -> i32 {
    let child = crate::harness::act("exit");
    i32::from(child.is_err())
}

/// Executes another program, with arguments that are checked there.
pub fn execute_other() -> i32 {
    let arguments = [
        c"tests".as_ptr(),
        c"--act".as_ptr(),
        c"echo-arguments".as_ptr(),
        c"one".as_ptr(),
        c"".as_ptr(),
        core::ptr::null(),
    ];
    let environment = [c"NAME=value".as_ptr(), core::ptr::null()];
    // SAFETY: the strings are static.
    let lists =
        unsafe { (system::process::StringList::new(&arguments), system::process::StringList::new(&environment)) };
    let (Some(arguments), Some(environment)) = lists else { return 1 };
    let error = system::process::execute(c"/bin/tests", arguments, environment);
    cops::eprintln!("execve: {error}");
    2
}

/// Returns 42 if arguments and environment are those of [`execute_other`].
fn echo_arguments() -> i32 {
    let arguments = [c"tests", c"--act", c"echo-arguments", c"one", c""];
    let right = cops::arguments().eq(arguments) && cops::environment().eq([c"NAME=value"]);
    if right { 42 } else { 1 }
}

/// Makes many calls that never end.
async fn calls_in_flight() -> i32 {
    let Ok((reader, _writer)) = cops::io::pipe() else { return 1 };
    let reader = alloc::sync::Arc::new(reader);
    for _ in 0..100 {
        let reader = reader.clone();
        cops::spawn(async move {
            let _ = reader.read(alloc::vec![0; 100]).await;
        })
        .detach();
        cops::spawn(async {
            let _ = cops::macros::nanosleep(1_000_000_000_000).await;
        })
        .detach();
    }
    cops::sleep(Duration::from_secs(1000)).await;
    1
}

/// Writes impossible claims to the process page, for a while and without a pause.
fn scribble_bitmap() -> i32 {
    let start = Instant::now();
    let mut word = 1u64;
    while start.elapsed() < Duration::from_millis(300) {
        for offset in (0..4096).step_by(8) {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // SAFETY: the page is mapped and writable, and its words are atomic.
            unsafe { &*((told(auxiliary::COPS_PROCESS_PAGE) + offset) as *const AtomicU64) }
                .store(word | 1, Ordering::Relaxed);
        }
    }
    system::process::exit(0)
}

/// Ends while calls of the lowest priority have not had their first turn.
fn leave_unimportant_calls() -> i32 {
    let time = abi_unix::types::TimeSpec::from_ns(1_000_000_000_000);
    for token in 1..=100 {
        let arguments = [&raw const time as usize, 0, 0, 0, 0, 0];
        // SAFETY: the kernel reads the time before it answers.
        let answer = unsafe {
            system::syscall_asynchronous(
                system::SystemCall::Sleep as usize,
                arguments,
                0,
                cops::Priority::LOWEST.number(),
                token,
            )
        };
        if answer != abi_unix::WILL_BE_POSTED {
            return 1;
        }
    }
    system::process::exit(0)
}

/// Writes random words to the completion ring while completions arrive.
async fn scribble_ring() -> i32 {
    for index in 0..200u64 {
        // SAFETY: the kernel reads the time before it answers.
        unsafe {
            let time = abi_unix::types::TimeSpec::from_ns(index * 100_000);
            system::syscall_asynchronous(
                system::SystemCall::Sleep as usize,
                [&raw const time as usize, 0, 0, 0, 0, 0],
                index,
                // Less important than the running coroutine, so that no completion interrupts it: the runtime's handler
                // trusts the ring, and would take 2^60 completions out of it.
                cops::Priority::LOWEST.number(),
                index + 1_000_000,
            );
        }
        for offset in [0, 64, 4096, 4096 + 8, 4096 + 16384 - 8] {
            // SAFETY: the ring is mapped and writable, and its words are atomic.
            unsafe { &*((told(auxiliary::COPS_COMPLETION_RING) + offset) as *const AtomicU64) }
                .store(index << 60 | index, Ordering::Relaxed);
        }
    }
    let time = abi_unix::types::TimeSpec::from_ns(30_000_000);
    let _ = system::system::sleep(time);
    system::process::exit(0)
}

/// Waits at one place, whichever coroutine does.
#[inline(never)]
async fn wait_for_ever() {
    cops::sync::Notify::new().notified().await;
}
