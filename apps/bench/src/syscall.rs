//! System calls: none, a pipe, and the asynchronous form beside the synchronous one.

use alloc::boxed::Box;
use core::pin::Pin;

use cops::io::{PipeReader, PipeWriter, pipe};
use cops::{Errno, read, system, write};

use crate::{Outcome, attempt, figure, now, repetitions};

/// Repetitions of each call, and pages that are touched, where time is cheap.
const TURNS: usize = 10_000;
const PAGES: usize = 4_000;
const PAGE: usize = 4096;

fn turns() -> usize {
    repetitions(TURNS)
}

pub async fn measure() -> Outcome {
    // First, and apart from all floating-point computation: a program that uses that unit pays a few instructions more
    // at each trap, and a function that uses it does so from its first instruction on.
    let null = total(|| {
        // SAFETY: the call has no pointers.
        let _ = unsafe { system::call!(GetProcess) };
    });
    let rest: Pin<Box<dyn Future<Output = Outcome> + Send>> = Box::pin(measure_others(null));
    rest.await
}

async fn measure_others(null: u64) -> Outcome {
    figure("null", null as f64 / turns() as f64, "instructions");
    let with_floating_point = total(|| {
        // SAFETY: as above.
        let _ = unsafe { system::call!(GetProcess) };
    });
    figure("null-floating-point", with_floating_point as f64 / turns() as f64, "instructions");

    let (reader, writer) = attempt!(pipe());
    figure("pipe", attempt!(synchronous_pipe(&reader, &writer)), "instructions");
    figure("pipe-async", attempt!(asynchronous_pipe(&reader, &writer).await), "instructions");

    // A read that is ready: the bytes are written before.
    let output = writer.descriptor().raw();
    let start = now();
    for _ in 0..turns() {
        attempt!(write!(output, b"x"));
    }
    figure("write", (now() - start) as f64 / turns() as f64, "instructions");
    let input = reader.descriptor().raw();
    let mut buffer = [0u8; 1];
    let start = now();
    for _ in 0..turns() {
        attempt!(read!(input, &mut buffer));
    }
    figure("read", (now() - start) as f64 / turns() as f64, "instructions");
    attempt!(fill(&writer));
    let mut buffer = alloc::vec![0u8; 1];
    let start = now();
    for _ in 0..turns() {
        let (result, returned) = reader.read(buffer).await;
        attempt!(result);
        buffer = returned;
    }
    figure("read-async", (now() - start) as f64 / turns() as f64, "instructions");
    figure("wait-async", attempt!(waiting(&reader, &writer).await), "instructions");
    let (mapping, faults) = attempt!(memory());
    figure("map-unmap", mapping, "instructions");
    figure("page-fault", faults, "instructions");
    Ok(())
}

/// Measures a mapping of a page, made and removed, and the first touch of a page in a larger one.
fn memory() -> Result<(f64, f64), Errno> {
    let mut result = Ok(());
    let mapping = total(|| {
        let page = system::memory::map(PAGE);
        // SAFETY: the page was mapped here, and nothing refers to it.
        result = result.and(page.and_then(|page| unsafe { system::memory::unmap(page, PAGE) }));
    });
    result?;
    let pages = repetitions(PAGES);
    let area = system::memory::map(pages * PAGE)?;
    let start = now();
    for page in 0..pages {
        // SAFETY: the area has so many pages.
        unsafe { area.add(page * PAGE).write_volatile(1) };
    }
    let faults = now() - start;
    // SAFETY: the area was mapped here, and nothing refers to it.
    unsafe { system::memory::unmap(area, pages * PAGE)? };
    Ok((mapping as f64 / turns() as f64, faults as f64 / pages as f64))
}

/// Returns the cost of all turns of an operation.
#[inline(never)]
fn total(mut operation: impl FnMut()) -> u64 {
    operation();
    let start = now();
    for _ in 0..turns() {
        operation();
    }
    now() - start
}

/// Puts as many bytes into the pipe as will be read.
fn fill(writer: &PipeWriter) -> Result<(), Errno> {
    system::file::write_all(writer.descriptor().raw(), &[1; TURNS][..turns()])
}

/// Measures one byte through the pipe and back, by one coroutine.
fn synchronous_pipe(reader: &PipeReader, writer: &PipeWriter) -> Result<f64, Errno> {
    let (input, output) = (reader.descriptor().raw(), writer.descriptor().raw());
    let mut buffer = [0u8; 1];
    // The first turn of a path touches pages that nobody has touched before.
    write!(output, b"x")?;
    read!(input, &mut buffer)?;
    let start = now();
    for _ in 0..turns() {
        write!(output, b"x")?;
        read!(input, &mut buffer)?;
    }
    Ok((now() - start) as f64 / turns() as f64)
}

/// Measures one byte through the pipe and back, with awaited calls.
async fn asynchronous_pipe(reader: &PipeReader, writer: &PipeWriter) -> Result<f64, Errno> {
    let (result, buffer) = writer.write(alloc::vec![0u8; 1]).await;
    result?;
    let (result, mut buffer) = reader.read(buffer).await;
    result?;
    let start = now();
    for _ in 0..turns() {
        let (result, returned) = writer.write(buffer).await;
        result?;
        let (result, returned) = reader.read(returned).await;
        result?;
        buffer = returned;
    }
    Ok((now() - start) as f64 / turns() as f64)
}

/// Measures a read that has to wait for another coroutine's write: both calls, the completion and two switches.
async fn waiting(reader: &PipeReader, writer: &PipeWriter) -> Result<f64, Errno> {
    let number = writer.descriptor().raw();
    let writing = cops::spawn(async move {
        for _ in 0..turns() {
            cops::yield_now().await;
            write!(number, b"x")?;
        }
        Ok::<(), Errno>(())
    });
    let mut buffer = alloc::vec![0u8; 1];
    let start = now();
    for _ in 0..turns() {
        let (result, returned) = reader.read(buffer).await;
        result?;
        buffer = returned;
    }
    let cost = (now() - start) as f64 / turns() as f64;
    writing.await.map_err(|_| Errno::ECANCELED)??;
    Ok(cost)
}
