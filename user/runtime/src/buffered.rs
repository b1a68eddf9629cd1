//! Readers and writers with a buffer of their own.
//!
//! A call owns its buffer while it is in flight, so a program that wants lines, or slices of its own to be filled,
//! needs bytes between the call and itself. They are kept here, and so is the call: a future of these types that is
//! dropped leaves the call in flight, and the next one continues it. The verdict of most is therefore *strict* where
//! that of a plain read is *weak*.

use core::fmt;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use alloc::string::String;
use alloc::vec::Vec;

use crate::buffer::Part;
use crate::io::{AsyncRead, AsyncWrite, ReadExactError};
use unix::{Errno, Result};

/// Initial capacity of the buffers, as in `std` and tokio.
const CAPACITY: usize = 8192;

/// A reader with a buffer.
///
/// The buffer grows to the longest line, but not beyond the limit ([`BufReader::with_limit`]).
///
/// ```no_run
/// # async fn example(stream: cops::net::TcpStream) -> Result<(), cops::Errno> {
/// use cops::io::BufReader;
///
/// let mut lines = BufReader::new(stream).with_limit(4096).lines();
/// while let Some(line) = lines.next_line().await? {
///     cops::println!("{line}");
/// }
/// # Ok(())
/// # }
/// ```
pub struct BufReader<R: AsyncRead> {
    source: R,
    /// Empty while a read is in flight, which owns it.
    buffer: Vec<u8>,
    /// Range of the bytes that were read and not used yet.
    start: usize,
    end: usize,
    limit: usize,
    reading: Option<R::Reading>,
}

// The reading future can be moved.
impl<R: AsyncRead> Unpin for BufReader<R> {}

impl<R: AsyncRead> BufReader<R> {
    /// Makes a reader with a buffer of the usual size.
    pub fn new(source: R) -> BufReader<R> {
        BufReader::with_capacity(CAPACITY, source)
    }

    /// Makes a reader with a buffer of another size, at least one byte.
    pub fn with_capacity(capacity: usize, source: R) -> BufReader<R> {
        let buffer = alloc::vec![0; capacity.max(1)];
        BufReader { source, buffer, start: 0, end: 0, limit: usize::MAX, reading: None }
    }

    /// Sets the longest line or segment; a longer one is `EMSGSIZE`. Without a limit a peer that never ends a line can
    /// take all memory of the process.
    pub fn with_limit(mut self, limit: usize) -> BufReader<R> {
        self.limit = limit;
        self
    }

    /// Returns the source. Bytes read from it directly are those behind the buffer's.
    pub fn get_ref(&self) -> &R {
        &self.source
    }

    /// Returns the source; bytes in the buffer are lost.
    pub fn into_inner(self) -> R {
        self.source
    }

    /// Returns the bytes that were read and not used yet; none while a read is in flight whose future was dropped.
    pub fn buffer(&self) -> &[u8] {
        if self.reading.is_some() { &[] } else { &self.buffer[self.start..self.end] }
    }

    /// Reads behind the bytes that are in the buffer.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<Result<usize>> {
        if self.reading.is_none() {
            self.make_room()?;
            let length = self.buffer.len();
            let part = Part::new(core::mem::take(&mut self.buffer), self.end, length);
            self.reading = Some(self.source.start_read(part));
        }
        let Some(reading) = &mut self.reading else { unreachable!("it was started above") };
        let (result, part) = ready!(Pin::new(reading).poll(context));
        self.reading = None;
        self.buffer = part.into_inner();
        self.end += result.unwrap_or(0);
        Poll::Ready(result)
    }

    /// Makes room behind the bytes in the buffer: moves them to its start, or enlarges it.
    fn make_room(&mut self) -> Result<()> {
        let (count, length) = (self.end - self.start, self.buffer.len());
        if count == 0 {
            (self.start, self.end) = (0, 0);
        } else if self.end == length && self.start >= length.div_ceil(2) {
            self.buffer.copy_within(self.start.., 0);
            (self.start, self.end) = (0, count);
        } else if self.end == length {
            // At most one byte beyond the limit: that of the delimiter.
            self.buffer.try_reserve(length).map_err(|_| Errno::ENOMEM)?;
            self.buffer.resize(2 * length, 0);
        }
        Ok(())
    }

    pub(crate) fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while self.reading.is_some() || self.start == self.end {
            if ready!(self.poll_more(context))? == 0 {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads if the buffer is empty, and returns its bytes; none at the end.
    ///
    /// # Errors
    ///
    /// As reading.
    ///
    /// # Cancellation
    ///
    /// Strict. The read continues, and the next call returns its bytes.
    pub async fn fill_buf(&mut self) -> Result<&[u8]> {
        poll_fn(|context| self.poll_fill(context)).await?;
        Ok(self.buffer())
    }

    /// Takes bytes out of the buffer.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.buffer().len(), "{count} bytes are to be consumed, and fewer are there");
        self.start += count;
    }

    /// Polls [`BufReader::read`].
    pub(crate) fn poll_read(&mut self, context: &mut Context<'_>, into: &mut [u8]) -> Poll<Result<usize>> {
        if into.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(self.poll_fill(context))?;
        let count = into.len().min(self.buffer().len());
        into[..count].copy_from_slice(&self.buffer()[..count]);
        self.consume(count);
        Poll::Ready(Ok(count))
    }

    /// Reads into a slice, and returns the number of bytes; 0 is the end.
    ///
    /// # Errors
    ///
    /// As reading.
    ///
    /// # Cancellation
    ///
    /// Strict. No byte is taken before the future is ready.
    pub async fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        poll_fn(|context| self.poll_read(context, into)).await
    }

    /// Fills a slice.
    ///
    /// # Errors
    ///
    /// [`ReadExactError`]; the bytes before are in the slice.
    ///
    /// # Cancellation
    ///
    /// Weak. Bytes that were taken so far are in the slice, their number is lost.
    pub async fn read_exact(&mut self, into: &mut [u8]) -> core::result::Result<(), ReadExactError> {
        let mut done = 0;
        while done < into.len() {
            match self.read(&mut into[done..]).await? {
                0 => return Err(ReadExactError::UnexpectedEof),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Reads to the end, appends the bytes, and returns their number.
    ///
    /// # Errors
    ///
    /// As reading, and `ENOMEM`; the bytes before were appended.
    ///
    /// # Cancellation
    ///
    /// Strict, if the next call gets the vector again: it continues.
    pub async fn read_to_end(&mut self, into: &mut Vec<u8>) -> Result<usize> {
        let begin = into.len();
        loop {
            let bytes = self.fill_buf().await?;
            if bytes.is_empty() {
                return Ok(into.len() - begin);
            }
            into.try_reserve(bytes.len()).map_err(|_| Errno::ENOMEM)?;
            into.extend_from_slice(bytes);
            let count = bytes.len();
            self.consume(count);
        }
    }

    /// Waits until the buffer begins with a whole segment; returns its length with the delimiter, if that has come.
    async fn segment(&mut self, delimiter: u8) -> Result<usize> {
        let mut searched = 0;
        poll_fn(|context| {
            loop {
                if self.reading.is_none() {
                    let bytes = &self.buffer[self.start..self.end];
                    if let Some(place) = bytes[searched..].iter().position(|byte| *byte == delimiter) {
                        let length = searched + place;
                        return Poll::Ready(if length > self.limit { Err(Errno::EMSGSIZE) } else { Ok(length + 1) });
                    }
                    searched = bytes.len();
                    if searched > self.limit {
                        return Poll::Ready(Err(Errno::EMSGSIZE));
                    }
                }
                if ready!(self.poll_more(context))? == 0 {
                    return Poll::Ready(Ok(self.end - self.start));
                }
            }
        })
        .await
    }

    /// Reads up to a delimiter, which is included, or to the end; appends the bytes and returns their number, 0 at the
    /// end.
    ///
    /// # Errors
    ///
    /// As reading, and `EMSGSIZE` beyond the limit, `ENOMEM`; nothing was taken.
    ///
    /// # Cancellation
    ///
    /// Strict. No byte is taken before all are there.
    pub async fn read_until(&mut self, delimiter: u8, into: &mut Vec<u8>) -> Result<usize> {
        let count = self.segment(delimiter).await?;
        into.try_reserve(count).map_err(|_| Errno::ENOMEM)?;
        into.extend_from_slice(&self.buffer()[..count]);
        self.consume(count);
        Ok(count)
    }

    /// Reads a line with its end, or what is before the end of the file; appends it and returns the number of bytes, 0
    /// at the end.
    ///
    /// # Errors
    ///
    /// As [`BufReader::read_until`]; `EINVAL` if the line is not UTF-8, which is taken and lost then.
    ///
    /// # Cancellation
    ///
    /// Strict. No byte is taken before the whole line is there.
    pub async fn read_line(&mut self, into: &mut String) -> Result<usize> {
        let count = self.segment(b'\n').await?;
        let appended = match core::str::from_utf8(&self.buffer()[..count]) {
            Ok(line) => into.try_reserve(count).map(|()| into.push_str(line)).map_err(|_| Errno::ENOMEM),
            Err(_) => Err(Errno::EINVAL),
        };
        self.consume(count);
        appended.map(|()| count)
    }

    /// Gives the lines one after the other.
    pub fn lines(self) -> Lines<R> {
        Lines(self)
    }

    /// Gives the segments between bytes of this kind.
    pub fn split(self, delimiter: u8) -> Split<R> {
        Split { reader: self, delimiter }
    }
}

impl<R: AsyncRead + fmt::Debug> fmt::Debug for BufReader<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = formatter.debug_struct("BufReader");
        text.field("source", &self.source).field("bytes", &self.buffer().len()).finish_non_exhaustive()
    }
}

/// Lines of a [`BufReader`].
#[derive(Debug)]
pub struct Lines<R: AsyncRead>(BufReader<R>);

impl<R: AsyncRead> Lines<R> {
    /// Reads the next line, without its end (`\n` or `\r\n`); `None` at the end of the file.
    ///
    /// # Errors
    ///
    /// As [`BufReader::read_line`].
    ///
    /// # Cancellation
    ///
    /// Strict. No byte is taken before the whole line is there.
    pub async fn next_line(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        if line.ends_with('\n') {
            line.pop();
            if line.ends_with('\r') {
                line.pop();
            }
        }
        Ok(Some(line))
    }

    /// Returns the reader, which stands behind the last line that was given.
    pub fn into_inner(self) -> BufReader<R> {
        self.0
    }
}

/// Segments of a [`BufReader`].
#[derive(Debug)]
pub struct Split<R: AsyncRead> {
    reader: BufReader<R>,
    delimiter: u8,
}

impl<R: AsyncRead> Split<R> {
    /// Reads the next segment, without its delimiter; `None` at the end of the file.
    ///
    /// # Errors
    ///
    /// As [`BufReader::read_until`].
    ///
    /// # Cancellation
    ///
    /// Strict. No byte is taken before the whole segment is there.
    pub async fn next_segment(&mut self) -> Result<Option<Vec<u8>>> {
        let mut segment = Vec::new();
        if self.reader.read_until(self.delimiter, &mut segment).await? == 0 {
            return Ok(None);
        }
        if segment.last() == Some(&self.delimiter) {
            segment.pop();
        }
        Ok(Some(segment))
    }
}

/// A writer with a buffer. Bytes in the buffer are lost with the writer, so flush it.
pub struct BufWriter<W: AsyncWrite> {
    sink: W,
    /// Bytes that are to be written. Empty while a write is in flight, which owns them.
    buffer: Vec<u8>,
    /// Number of these bytes that have been written.
    done: usize,
    capacity: usize,
    writing: Option<W::Writing>,
}

// The writing future can be moved.
impl<W: AsyncWrite> Unpin for BufWriter<W> {}

impl<W: AsyncWrite> BufWriter<W> {
    /// Makes a writer with a buffer of the usual size.
    pub fn new(sink: W) -> BufWriter<W> {
        BufWriter::with_capacity(CAPACITY, sink)
    }

    /// Makes a writer with a buffer of another size, at least one byte.
    pub fn with_capacity(capacity: usize, sink: W) -> BufWriter<W> {
        let capacity = capacity.max(1);
        BufWriter { sink, buffer: Vec::with_capacity(capacity), done: 0, capacity, writing: None }
    }

    /// Returns the sink. Bytes written to it directly may overtake those in the buffer.
    pub fn get_ref(&self) -> &W {
        &self.sink
    }

    /// Returns the sink; bytes in the buffer are lost.
    pub fn into_inner(self) -> W {
        self.sink
    }

    /// Writes all bytes of the buffer.
    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            if self.writing.is_none() {
                let length = self.buffer.len();
                if self.done == length {
                    self.buffer.clear();
                    self.done = 0;
                    return Poll::Ready(Ok(()));
                }
                let part = Part::new(core::mem::take(&mut self.buffer), self.done, length);
                self.writing = Some(self.sink.start_write(part));
            }
            let Some(writing) = &mut self.writing else { unreachable!("it was started above") };
            let (result, part) = ready!(Pin::new(writing).poll(context));
            self.writing = None;
            self.buffer = part.into_inner();
            match result {
                Ok(0) => return Poll::Ready(Err(Errno::EIO)),
                Ok(count) => self.done += count,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Polls [`BufWriter::write`].
    pub(crate) fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        if self.writing.is_some() || self.buffer.len() >= self.capacity {
            ready!(self.poll_flush(context))?;
        }
        let count = bytes.len().min(self.capacity - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    /// Takes bytes, at least one of them, into the buffer, which is written first if it is full; returns their number.
    ///
    /// # Errors
    ///
    /// As writing: bytes of earlier calls could not be written, and are still in the buffer.
    ///
    /// # Cancellation
    ///
    /// Strict. No byte is taken before the future is ready.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        poll_fn(|context| self.poll_write(context, bytes)).await
    }

    /// Takes all bytes into the buffer, which is written whenever it is full.
    ///
    /// # Errors
    ///
    /// As writing.
    ///
    /// # Cancellation
    ///
    /// Weak. A part of the bytes may have been taken.
    pub async fn write_all(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let count = self.write(bytes).await?;
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Writes the bytes in the buffer.
    ///
    /// # Errors
    ///
    /// As writing; the bytes are still in the buffer.
    ///
    /// # Cancellation
    ///
    /// Strict. The next call continues.
    pub async fn flush(&mut self) -> Result<()> {
        poll_fn(|context| self.poll_flush(context)).await
    }
}

impl<W: AsyncWrite + fmt::Debug> fmt::Debug for BufWriter<W> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = formatter.debug_struct("BufWriter");
        text.field("sink", &self.sink).field("bytes", &self.buffer.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::pin::pin;
    use core::task::Waker;
    use proptest::prelude::*;
    use std::boxed::Box;
    use std::sync::{Arc, Mutex};
    use std::vec;

    /// The far end of a fake connection.
    #[derive(Default)]
    struct Wire {
        bytes: Vec<u8>,
        /// Bytes of each call, at most; 0 is one that waits for a poll before it gives the next.
        steps: std::collections::VecDeque<usize>,
        fails: bool,
    }

    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<Wire>>);

    /// A call to the far end, which is made when it is polled, not when it begins.
    struct Call {
        wire: Arc<Mutex<Wire>>,
        part: Option<Part<Vec<u8>>>,
        reads: bool,
    }

    impl Future for Call {
        type Output = (Result<usize>, Part<Vec<u8>>);

        fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
            let this = &mut *self;
            let mut wire = this.wire.lock().unwrap();
            let step = wire.steps.pop_front().unwrap_or(usize::MAX);
            if step == 0 {
                return Poll::Pending;
            }
            let (part, reads) = (this.part.take().unwrap(), this.reads);
            if core::mem::take(&mut wire.fails) {
                return Poll::Ready((Err(Errno::EPIPE), part));
            }
            let (end, length) = (part.end(), crate::buffer::Buffer::length(&part));
            let (start, mut bytes) = (end - length, part.into_inner());
            let count = if reads {
                let count = step.min(length).min(wire.bytes.len());
                bytes[start..start + count].copy_from_slice(&wire.bytes[..count]);
                wire.bytes.drain(..count);
                count
            } else {
                let count = step.min(length);
                wire.bytes.extend_from_slice(&bytes[start..start + count]);
                count
            };
            Poll::Ready((Ok(count), Part::new(bytes, start, end)))
        }
    }

    impl AsyncRead for Fake {
        type Reading = Call;
        fn start_read(&self, into: Part<Vec<u8>>) -> Call {
            Call { wire: self.0.clone(), part: Some(into), reads: true }
        }
    }

    impl AsyncWrite for Fake {
        type Writing = Call;
        fn start_write(&self, from: Part<Vec<u8>>) -> Call {
            Call { wire: self.0.clone(), part: Some(from), reads: false }
        }
    }

    impl Fake {
        fn new(bytes: &[u8], steps: impl IntoIterator<Item = usize>) -> Fake {
            Fake(Arc::new(Mutex::new(Wire { bytes: bytes.to_vec(), steps: steps.into_iter().collect(), fails: false })))
        }
    }

    /// Polls a future once, and drops it.
    fn once<F: Future>(future: F) -> Poll<F::Output> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn run<F: Future>(future: F) -> F::Output {
        let mut future = Box::pin(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return output;
            }
        }
    }

    #[test]
    fn lines_that_are_too_long_or_not_text_are_refused() {
        let mut reader = BufReader::with_capacity(2, Fake::new(b"12345\n123456\n", [1; 9])).with_limit(5);
        let mut line = String::new();
        assert_eq!((run(reader.read_line(&mut line)), line.as_str()), (Ok(6), "12345\n"));
        assert_eq!(run(reader.read_line(&mut line)), Err(Errno::EMSGSIZE));
        // Nothing was taken.
        let mut rest = Vec::new();
        assert_eq!((run(reader.read_to_end(&mut rest)), rest.as_slice()), (Ok(7), &b"123456\n"[..]));
        let mut lines = BufReader::new(Fake::new(b"\xff\nend", [])).lines();
        assert_eq!(run(lines.next_line()), Err(Errno::EINVAL));
        assert_eq!(run(lines.next_line()), Ok(Some("end".into())));
        assert_eq!(run(lines.next_line()), Ok(None));
    }

    #[test]
    fn an_early_end_is_told_from_a_failure() {
        let fake = Fake::new(b"abc", []);
        let mut reader = BufReader::new(fake.clone());
        fake.0.lock().unwrap().fails = true;
        let mut bytes = [0; 4];
        assert_eq!(run(reader.read_exact(&mut bytes)), Err(ReadExactError::Other(Errno::EPIPE)));
        assert_eq!(run(reader.read_exact(&mut bytes)), Err(ReadExactError::UnexpectedEof));
        assert_eq!((&bytes[..3], Errno::from(ReadExactError::UnexpectedEof)), (&b"abc"[..], Errno::EIO));
    }

    #[test]
    fn lines_and_segments_come_without_their_ends() {
        let text = b"one\r\n\ntwo\r";
        let mut lines = BufReader::new(Fake::new(text, [])).lines();
        let mut all = Vec::new();
        while let Some(line) = run(lines.next_line()).unwrap() {
            all.push(line);
        }
        assert_eq!(all, ["one", "", "two\r"]);
        let mut segments = BufReader::new(Fake::new(b"a,,b", [])).split(b',');
        let mut all = Vec::new();
        while let Some(segment) = run(segments.next_segment()).unwrap() {
            all.push(segment);
        }
        assert_eq!(all, [&b"a"[..], b"", b"b"]);
    }

    #[test]
    fn a_failed_write_keeps_its_bytes_for_the_next() {
        let fake = Fake::default();
        let mut writer = BufWriter::with_capacity(4, fake.clone());
        assert_eq!(run(writer.write_all(b"abc")), Ok(()));
        fake.0.lock().unwrap().fails = true;
        assert_eq!(run(writer.flush()), Err(Errno::EPIPE));
        assert_eq!((run(writer.flush()), fake.0.lock().unwrap().bytes.as_slice()), (Ok(()), &b"abc"[..]));
    }

    #[test]
    fn copying_ends_with_the_source() {
        let bytes: Vec<u8> = (0..20_000u32).map(|number| number as u8).collect();
        let (from, to) = (Fake::new(&bytes, [0, 1, 7, 0, 5000]), Fake::new(&[], [3, 0, 900]));
        assert_eq!(run(crate::io::copy(&from, &to)), Ok(20_000));
        assert_eq!(to.0.lock().unwrap().bytes, bytes);
    }

    proptest! {
        #![proptest_config(property::cases(256))]

        /// Beside the plain text: however the bytes arrive, and however often futures are dropped in the middle, each
        /// byte is read once and in order.
        #[test]
        fn dropped_reads_lose_nothing(
            text in prop::collection::vec(prop::sample::select(&b"ab\n"[..]), 0..200),
            steps in prop::collection::vec(0..9usize, 0..100),
            capacity in 1..9usize,
            ways in prop::collection::vec(0..4u8, 1..20),
        ) {
            let mut reader = BufReader::with_capacity(capacity, Fake::new(&text, steps));
            let (mut rest, mut ways) = (&text[..], ways.into_iter().cycle());
            let (mut line, mut string) = (Vec::new(), String::new());
            let mut slice = [0; 5];
            loop {
                let way = ways.next().unwrap();
                let next_line = rest.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
                let taken = match way {
                    0 => match once(reader.fill_buf()) {
                        Poll::Pending => continue,
                        Poll::Ready(bytes) => {
                            let bytes = bytes.unwrap().to_vec();
                            let count = bytes.len().div_ceil(2);
                            reader.consume(count);
                            bytes[..count].to_vec()
                        }
                    },
                    1 => match once(reader.read(&mut slice)) {
                        Poll::Pending => continue,
                        Poll::Ready(count) => slice[..count.unwrap()].to_vec(),
                    },
                    2 => match once(reader.read_until(b'\n', &mut line)) {
                        Poll::Pending => continue,
                        Poll::Ready(count) => {
                            prop_assert_eq!((count.unwrap(), line.as_slice()), (next_line.len(), next_line));
                            core::mem::take(&mut line)
                        }
                    },
                    _ => match once(reader.read_line(&mut string)) {
                        Poll::Pending => continue,
                        Poll::Ready(count) => {
                            prop_assert_eq!((count.unwrap(), string.as_bytes()), (next_line.len(), next_line));
                            core::mem::take(&mut string).into_bytes()
                        }
                    },
                };
                prop_assert_eq!(&taken[..], &rest[..taken.len()]);
                prop_assert!(!taken.is_empty() || rest.is_empty());
                if taken.is_empty() {
                    break;
                }
                rest = &rest[taken.len()..];
            }
        }

        /// The bytes that a writer takes arrive once and in order, however its futures are dropped.
        #[test]
        fn dropped_writes_lose_nothing(
            writes in prop::collection::vec((0..12usize, any::<bool>()), 0..60),
            steps in prop::collection::vec(0..6usize, 0..100),
            capacity in 1..9usize,
        ) {
            let fake = Fake::new(&[], steps);
            let mut writer = BufWriter::with_capacity(capacity, fake.clone());
            let (mut taken, mut number) = (vec![], 0u8);
            for (length, flushes) in writes {
                let bytes: Vec<u8> = (0..length).map(|_| { number = number.wrapping_add(1); number }).collect();
                if let Poll::Ready(count) = once(writer.write(&bytes)) {
                    let count = count.unwrap();
                    prop_assert!(count > 0 || length == 0);
                    taken.extend_from_slice(&bytes[..count]);
                }
                if flushes && once(writer.flush()) == Poll::Ready(Ok(())) {
                    prop_assert_eq!(&fake.0.lock().unwrap().bytes, &taken);
                }
            }
            prop_assert_eq!(run(writer.flush()), Ok(()));
            prop_assert_eq!(&fake.0.lock().unwrap().bytes, &taken);
        }
    }
}
