//! The suite of programs that have the standard library and coroutines: threads, thread-local data, files, processes
//! and panics of `std` beside workers, coroutines and calls of COPS.
//!
//! With an argument it is one of the programs that the suite starts: see [`ended`].
#![forbid(unsafe_code)]

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use cops::Errno;
use cops::io::BufWriter;
use cops::sync::Notify;
use futures_io::AsyncWrite;

/// The result of a test: the error is the failure.
type Outcome = Result<(), String>;

/// Longest time of a test, to end a hang.
const LIMIT: Duration = Duration::from_secs(120);

const WORKERS: usize = 4;

/// Ends the test unless the condition holds.
macro_rules! check {
    ($condition:expr, $($format:tt)*) => {
        if !$condition {
            return Err(format!("{}:{}: {}", file!(), line!(), format_args!($($format)*)));
        }
    };
}

/// Unwraps a result, or ends the test with its error.
macro_rules! must {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return Err(format!("{}:{}: {}: {error:?}", file!(), line!(), stringify!($result))),
        }
    };
}

#[cops::main(workers = WORKERS)]
async fn main() -> i32 {
    let way = std::env::args().nth(1);
    if let Some(way) = way {
        return ended(&way).await;
    }
    let (mut passed, mut failed) = (0, 0);
    macro_rules! run {
        ($($test:ident),* $(,)?) => { $(
            let outcome = match cops::timeout(LIMIT, $test()).await {
                Ok(outcome) => outcome,
                Err(_) => Err("it has not ended".to_string()),
            };
            match outcome {
                Ok(()) => {
                    passed += 1;
                    println!("test {} ... ok", stringify!($test));
                }
                Err(reason) => {
                    failed += 1;
                    println!("test {} ... FAILED: {reason}", stringify!($test));
                }
            }
        )* };
    }
    run!(
        arguments_and_variables_are_the_same,
        workers_have_thread_local_data_of_their_own,
        memory_goes_from_worker_to_worker_and_to_threads,
        threads_wake_coroutines,
        a_worker_can_wait_like_a_thread,
        threads_of_both_libraries_end_with_their_values,
        sockets_of_both_libraries_talk,
        files_of_both_libraries_are_the_same,
        children_end_as_they_should,
        hyper_serves_on_both_executors,
    );
    println!("{passed} passed, {failed} failed");
    i32::from(failed != 0)
}

/// Ends the process in one of several ways.
async fn ended(way: &str) -> i32 {
    match way {
        "status" => 7,
        "unflushed" => {
            print!("this line has no end");
            3
        }
        "panic" => {
            let _ = cops::spawn(async { panic!("a coroutine panics") }).await;
            0
        }
        "panic-in-thread" => match std::thread::spawn(|| panic!("a thread panics")).join() {
            Ok(()) => 1,
            Err(_) => 4,
        },
        "panic-in-own-thread" => match cops::thread::spawn(|| panic!("a thread of cops panics")) {
            Ok(thread) => thread.join(),
            Err(_) => 1,
        },
        "caught" => match std::panic::catch_unwind(|| panic!("a panic that is caught")) {
            Ok(()) => 1,
            Err(_) => 6,
        },
        "preemption" => {
            cops::preemption::enable();
            0
        }
        "exit" => std::process::exit(9),
        "web" => match cops::timeout(LIMIT, answer_of_server()).await {
            Ok(answer) => {
                println!("{answer}");
                0
            }
            Err(_) => 1,
        },
        "error" => {
            eprintln!("{}", std::io::Error::from_raw_os_error(Errno::ENOENT.number().into()));
            5
        }
        other => {
            eprintln!("unknown way to end: {other}");
            2
        }
    }
}

/// Asks the server at port 8080 of this machine until it is there; returns the last line of its answer.
async fn answer_of_server() -> String {
    loop {
        let ask = || {
            let mut stream = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, 8080))?;
            stream.write_all(b"GET /a/path HTTP/1.1\r\nhost: cops\r\nconnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map(|_| answer)
        };
        match ask() {
            Ok(answer) => return answer.lines().last().unwrap_or_default().to_string(),
            Err::<_, std::io::Error>(_) => cops::sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn arguments_and_variables_are_the_same() -> Outcome {
    let own: Vec<String> = cops::arguments().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let of_std: Vec<String> = std::env::args().collect();
    check!(own == of_std && !own.is_empty(), "{own:?} and {of_std:?}");
    let own: HashSet<String> = cops::environment().map(|text| text.to_string_lossy().into_owned()).collect();
    let of_std: HashSet<String> = std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
    check!(own == of_std, "{own:?} and {of_std:?}");
    check!(cops::workers() >= 1, "there is no worker");
    Ok(())
}

thread_local! {
    static VISITS: Cell<usize> = const { Cell::new(0) };
}

/// Places of a thread-local variable, with its value and the name of the thread whose it is.
type Places = Mutex<HashMap<usize, (usize, Option<String>)>>;

fn record_visit(places: &Places) {
    let (place, count) = VISITS.with(|visits| {
        visits.set(visits.get() + 1);
        (std::ptr::from_ref(visits).addr(), visits.get())
    });
    let name = std::thread::current().name().map(String::from);
    if let Ok(mut places) = places.lock() {
        places.insert(place, (count, name));
    }
}

/// A coroutine sees the data of the worker that it runs on, and nothing is lost.
async fn workers_have_thread_local_data_of_their_own() -> Outcome {
    const COROUTINES: usize = 64;
    const ROUNDS: usize = 100;
    let places = Arc::new(Places::default());
    let handles: Vec<_> = (0..COROUTINES)
        .map(|_| {
            let places = places.clone();
            cops::spawn(async move {
                for _ in 0..ROUNDS {
                    record_visit(&places);
                    cops::yield_now().await;
                }
            })
        })
        .collect();
    for handle in handles {
        must!(handle.await);
    }
    let places = must!(places.lock());
    let visits: usize = places.values().map(|(count, _)| count).sum();
    check!(visits == COROUTINES * ROUNDS, "{visits} visits");
    let names: HashSet<_> = places.values().map(|(_, name)| name.clone()).collect();
    check!(names.len() == places.len() && places.len() <= WORKERS, "{places:?}");
    Ok(())
}

async fn memory_goes_from_worker_to_worker_and_to_threads() -> Outcome {
    let (sender, receiver) = mpsc::channel::<Vec<Box<[u8]>>>();
    let freer = std::thread::spawn(move || receiver.into_iter().map(|blocks| blocks.len()).sum::<usize>());
    let handles: Vec<_> = (0..32usize)
        .map(|number| {
            let sender = sender.clone();
            cops::spawn(async move {
                for round in 0..50usize {
                    let size = 1 + (number * 997 + round * 131) % 9000;
                    let blocks: Vec<_> = (0..8).map(|_| vec![number as u8; size].into_boxed_slice()).collect();
                    cops::yield_now().await;
                    let is_whole = blocks.iter().flatten().all(|byte| *byte == number as u8);
                    if !is_whole || sender.send(blocks).is_err() {
                        return false;
                    }
                }
                true
            })
        })
        .collect();
    drop(sender);
    for handle in handles {
        check!(must!(handle.await), "a block has changed");
    }
    let freed = freer.join().map_err(|_| "the thread that frees has panicked")?;
    check!(freed == 32 * 50 * 8, "{freed} blocks");
    Ok(())
}

async fn threads_wake_coroutines() -> Outcome {
    for _ in 0..200 {
        let notify = Arc::new(Notify::new());
        let theirs = notify.clone();
        let thread = std::thread::spawn(move || theirs.notify_one());
        notify.notified().await;
        thread.join().map_err(|_| "the thread has panicked")?;
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let spawned = cops::spawn(async move { sender.send(std::thread::current().id()) });
            drop(spawned);
            (receiver.recv().ok(), std::thread::current().id())
        });
        let (ran_on, own) = thread.join().map_err(|_| "the thread has panicked")?;
        check!(ran_on.is_some_and(|worker| worker != own), "the coroutine ran in the thread: {ran_on:?}");
    }
    Ok(())
}

/// Waiting in `std` puts a worker to sleep, and what wakes it is not taken by the thread that lends its data.
async fn a_worker_can_wait_like_a_thread() -> Outcome {
    for _ in 0..200 {
        // Each on any of the workers, at least one of which is none with the stack of the main thread.
        let handles: Vec<_> = (0..WORKERS - 1)
            .map(|_| {
                cops::spawn(async {
                    let worker = std::thread::current();
                    let waker = std::thread::spawn(move || worker.unpark());
                    std::thread::park();
                    waker.join().is_ok()
                })
            })
            .collect();
        for handle in handles {
            check!(must!(handle.await), "a thread has panicked");
        }
    }
    Ok(())
}

async fn threads_of_both_libraries_end_with_their_values() -> Outcome {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    static VALUE: cops::thread::LocalKey<Cell<Option<Counted>>> = cops::thread::LocalKey::new(|| Cell::new(None));
    let dropped = Arc::new(AtomicUsize::new(0));
    for _ in 0..20 {
        let (theirs, others) = (dropped.clone(), dropped.clone());
        let own = must!(cops::thread::spawn(move || VALUE.with(|value| value.set(Some(Counted(theirs))))));
        let of_std = std::thread::spawn(move || VALUE.with(|value| value.set(Some(Counted(others)))));
        own.join();
        of_std.join().map_err(|_| "a thread has panicked")?;
    }
    // `join` of COPS waits for the function, not for the end of the thread.
    for _ in 0..1000 {
        if dropped.load(Ordering::Relaxed) == 40 {
            return Ok(());
        }
        cops::sleep(Duration::from_millis(5)).await;
    }
    Err(format!("{} values were dropped", dropped.load(Ordering::Relaxed)))
}

async fn sockets_of_both_libraries_talk() -> Outcome {
    let listener = must!(cops::net::TcpListener::bind("127.0.0.1:0"));
    let address = must!(listener.local_address());
    let server = cops::spawn(async move {
        let stream = Arc::new(listener.accept().await?.0);
        let (result, bytes) = stream.read_exact(vec![0; 5]).await;
        result?;
        let mut writer = BufWriter::new(stream.clone());
        writer.write_all(&bytes).await?;
        // The client reads to the end, and this end keeps its connection until it has gone.
        if std::future::poll_fn(|context| Pin::new(&mut writer).poll_close(context)).await.is_err() {
            return Err(Errno::EIO);
        }
        stream.read_to_end(Vec::new()).await.0.map(drop)
    });
    let client = std::thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(address)?;
        stream.write_all(b"hello")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    });
    must!(must!(server.await));
    // The client's thread ends by itself; nothing else needs this worker.
    let answer = must!(client.join().map_err(|_| "the client has panicked")?);
    check!(answer == "hello", "{answer:?}");
    Ok(())
}

async fn files_of_both_libraries_are_the_same() -> Outcome {
    let path = "/tmp/std-suite";
    must!(std::fs::write(path, "written by std"));
    let file = must!(cops::file::File::open(path));
    let (result, bytes) = file.read_to_end(Vec::new()).await;
    must!(result);
    check!(bytes == b"written by std", "{bytes:?}");
    let metadata = must!(std::fs::metadata(path));
    check!(metadata.len() == 14, "{} bytes", metadata.len());
    must!(std::fs::remove_file(path));
    check!(cops::file::File::open(path).is_err_and(|error| error == Errno::ENOENT), "it is still there");
    Ok(())
}

async fn children_end_as_they_should() -> Outcome {
    let program = must!(std::env::current_exe());
    for (way, status, output, error) in [
        ("status", 7, "", ""),
        ("unflushed", 3, "this line has no end", ""),
        ("exit", 9, "", ""),
        ("panic", 101, "", "a coroutine panics"),
        ("panic-in-thread", 4, "", "a thread panics"),
        ("panic-in-own-thread", 101, "", "a thread of cops panics"),
        ("caught", 6, "", "a panic that is caught"),
        ("preemption", 101, "", "cannot preempt"),
        ("error", 5, "", "No such file or directory"),
        ("nonsense", 2, "", "unknown way to end: nonsense"),
    ] {
        let ended = must!(Command::new(&program).arg(way).output());
        check!(ended.status.code() == Some(status), "{way}: {}", ended.status);
        let (found, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        check!(found == output && errors.contains(error), "{way}: {found:?}, {errors:?}");
    }
    Ok(())
}

async fn hyper_serves_on_both_executors() -> Outcome {
    let ended = Command::new("/bin/hyper-server").args(["compare", "20", "4"]).output();
    let ended = ended.map_err(|error| format!("/bin/hyper-server, which `cargo xtask test` adds: {error}"))?;
    let printed = String::from_utf8_lossy(&ended.stdout);
    let times = printed.lines().filter(|line| line.ends_with(" ns for each request")).count();
    check!(ended.status.success() && times == 4, "{}: {printed}", ended.status);
    Ok(())
}
