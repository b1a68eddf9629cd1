//! The matrix server's messages, the multiplication that both ends compute, and the names of the server's models.
//!
//! A client sends two square matrices, the server answers their product. The format exists to be measured with: one
//! length field, a number to match answers with requests, and elements that cost nothing to check. All numbers are
//! unsigned 32-bit and little-endian; products and sums wrap, so that every pair of matrices has an answer.
//!
//! ```text
//! request   order (1..=64) | sequence | order * order elements, row by row | order * order elements, row by row
//! answer    order          | sequence | order * order elements, row by row
//! ```
//!
//! The order is the only part of a message that can be wrong, and it determines the message's length. It is unvalidated
//! until [`Order::new`] has checked it: a decoder requests no more than [`Order::MAXIMUM`] allows, whatever the peer
//! claims, and refuses a wrong order as soon as its four bytes have arrived, not after the rest.
//!
//! Decoding works on the bytes received so far and keeps no state: [`Request::decode`] and [`Answer::decode`] return
//! the length of the message at the front, or the message. The storage is the caller's on both sides; only
//! [`Requests`], the buffer of a connection, allocates.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod model;
mod requests;

use zerocopy::FromBytes;

pub use model::Model;
pub use requests::{Reason, Requests};

/// Bytes of one element, of the order and of the sequence number.
const WORD_BYTES: usize = 4;

/// Bytes before the elements: the order and the sequence number.
pub const HEADER_BYTES: usize = 2 * WORD_BYTES;

/// Elements of the largest matrix.
pub const MAXIMUM_ELEMENTS: usize = Order::MAXIMUM.elements();

/// Bytes of the largest request: the receive buffer that is always enough.
pub const MAXIMUM_REQUEST_BYTES: usize = Order::MAXIMUM.request_bytes();

/// Bytes of the largest answer.
pub const MAXIMUM_ANSWER_BYTES: usize = Order::MAXIMUM.answer_bytes();

/// The number of rows and columns of a square matrix: 1 to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(u8);

impl Order {
    /// The smallest matrix, a single number.
    pub const MINIMUM: Order = Order(1);
    /// The largest matrix that a message can carry.
    pub const MAXIMUM: Order = Order(64);

    /// Checks an order that came from outside.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if it is not between [`Order::MINIMUM`] and [`Order::MAXIMUM`].
    pub const fn new(order: u32) -> Result<Order, Malformed> {
        if order >= Self::MINIMUM.0 as u32 && order <= Self::MAXIMUM.0 as u32 {
            Ok(Order(order as u8))
        } else {
            Err(Malformed { order })
        }
    }

    /// Returns the number of rows, which is that of columns.
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// Returns the number of elements of one matrix.
    pub const fn elements(self) -> usize {
        self.get() * self.get()
    }

    /// Returns the length of a whole request, in bytes.
    pub const fn request_bytes(self) -> usize {
        HEADER_BYTES + 2 * self.elements() * WORD_BYTES
    }

    /// Returns the length of a whole answer, in bytes.
    pub const fn answer_bytes(self) -> usize {
        HEADER_BYTES + self.elements() * WORD_BYTES
    }
}

/// A message whose order is out of range. The stream has no boundary to go on from: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Order that the message claims.
    pub order: u32,
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            formatter,
            "a matrix of order {} was announced; orders are {} to {}",
            self.order,
            Order::MINIMUM.get(),
            Order::MAXIMUM.get()
        )
    }
}

impl core::error::Error for Malformed {}

/// Result of decoding the bytes received so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<Message> {
    /// The message is not complete: decode again when there are this many bytes in all. While the order itself is
    /// missing this is [`HEADER_BYTES`], afterwards the length of the whole message.
    NeedBytes(usize),
    /// The message at the front, and its length; later bytes belong to the next one.
    Complete(Message, usize),
}

/// The elements of one matrix in the layout of a message, row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elements<'a>(&'a [[u8; WORD_BYTES]]);

impl Elements<'_> {
    /// Returns the number of elements: the square of the order.
    #[allow(clippy::len_without_is_empty, reason = "a matrix is never empty")]
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Copies the elements to the front of `words`, for the multiplication.
    ///
    /// # Panics
    ///
    /// If `words` is shorter than [`Elements::len`].
    pub fn copy_to(self, words: &mut [u32]) {
        for (word, bytes) in words[..self.0.len()].iter_mut().zip(self.0) {
            *word = u32::from_le_bytes(*bytes);
        }
    }
}

impl<'a> Elements<'a> {
    /// Returns the elements one after the other.
    pub fn iter(self) -> impl ExactSizeIterator<Item = u32> + 'a {
        self.0.iter().map(|bytes| u32::from_le_bytes(*bytes))
    }
}

impl<'a> Elements<'a> {
    /// Returns the elements as words in the order of their bytes in a message, if they begin at an aligned address.
    fn words(self) -> Option<&'a [u32]> {
        <[u32]>::ref_from_bytes(self.0.as_flattened()).ok()
    }
}

/// A request: two matrices to multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Rows and columns of both matrices.
    pub order: Order,
    /// Chosen by the client and repeated in the answer.
    pub sequence: u32,
    /// The left factor.
    pub left: Elements<'a>,
    /// The right factor.
    pub right: Elements<'a>,
}

impl<'a> Request<'a> {
    /// Decodes a request at the front of `received`.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if the order is out of range, as soon as its bytes are there.
    pub fn decode(received: &'a [u8]) -> Result<Decoded<Request<'a>>, Malformed> {
        let Some(order) = announced_order(received)? else {
            return Ok(Decoded::NeedBytes(HEADER_BYTES));
        };
        let total = order.request_bytes();
        let Some(([_, sequence], elements)) = split_message(received, total) else {
            return Ok(Decoded::NeedBytes(total));
        };
        let (left, right) = elements.split_at(order.elements());
        let request = Request { order, sequence, left: Elements(left), right: Elements(right) };
        Ok(Decoded::Complete(request, total))
    }
}

/// An answer: the product of a request's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// Rows and columns of the product.
    pub order: Order,
    /// The sequence number of the request that this answers.
    pub sequence: u32,
    /// The product.
    pub product: Elements<'a>,
}

impl<'a> Answer<'a> {
    /// Decodes an answer at the front of `received`.
    ///
    /// # Errors
    ///
    /// [`Malformed`] if the order is out of range, as soon as its bytes are there.
    pub fn decode(received: &'a [u8]) -> Result<Decoded<Answer<'a>>, Malformed> {
        let Some(order) = announced_order(received)? else {
            return Ok(Decoded::NeedBytes(HEADER_BYTES));
        };
        let total = order.answer_bytes();
        let Some(([_, sequence], elements)) = split_message(received, total) else {
            return Ok(Decoded::NeedBytes(total));
        };
        Ok(Decoded::Complete(Answer { order, sequence, product: Elements(elements) }, total))
    }
}

/// Writes a request to the front of `message` and returns its length, [`Order::request_bytes`].
///
/// # Panics
///
/// If `left` or `right` is not exactly [`Order::elements`] long, or `message` is too short.
pub fn encode_request(order: Order, sequence: u32, left: &[u32], right: &[u32], message: &mut [u8]) -> usize {
    assert_eq!(left.len(), order.elements(), "the left factor has another order");
    assert_eq!(right.len(), order.elements(), "the right factor has another order");
    let total = order.request_bytes();
    let header = [order.get() as u32, sequence];
    write_words(&mut message[..total], header.iter().chain(left).chain(right));
    total
}

/// Writes an answer to the front of `message` and returns its length, [`Order::answer_bytes`].
///
/// # Panics
///
/// If `product` is not exactly [`Order::elements`] long, or `message` is too short.
pub fn encode_answer(order: Order, sequence: u32, product: &[u32], message: &mut [u8]) -> usize {
    assert_eq!(product.len(), order.elements(), "the product has another order");
    let total = order.answer_bytes();
    let (header, elements) = message[..total].split_at_mut(HEADER_BYTES);
    write_words(header, [order.get() as u32, sequence].iter());
    write_words(elements, product.iter());
    total
}

/// Multiplies two matrices of order `order`, given row by row, with wrapping arithmetic.
///
/// Both ends compute this: the server to answer, the client to check. A row of the product is computed in blocks of
/// columns whose sums stay in registers, while the rows of the right matrix go by in memory order: otherwise each
/// product would load and store its sum.
///
/// # Panics
///
/// If one of the slices is not exactly [`Order::elements`] long.
pub fn multiply(order: Order, left: &[u32], right: &[u32], product: &mut [u32]) {
    assert_eq!(left.len(), order.elements(), "the left factor has another order");
    assert_eq!(right.len(), order.elements(), "the right factor has another order");
    assert_eq!(product.len(), order.elements(), "the product has another order");
    let columns = order.get();
    for (row, sums) in left.chunks_exact(columns).zip(product.chunks_exact_mut(columns)) {
        let rest = multiply_blocks::<8>(row, right, sums, 0);
        let rest = multiply_blocks::<4>(row, right, sums, rest);
        multiply_blocks::<1>(row, right, sums, rest);
    }
}

/// Computes as many whole blocks of `N` columns of a row of the product as fit from a column on; returns the next
/// column.
#[inline(always)]
fn multiply_blocks<const N: usize>(row: &[u32], right: &[u32], sums: &mut [u32], mut column: usize) -> usize {
    while let Some(block) = sums.get_mut(column..).and_then(<[u32]>::first_chunk_mut::<N>) {
        let mut totals = [0u32; N];
        // The rest of each row of the right matrix from this column on, with the beginning of the next row.
        for (factor, elements) in row.iter().zip(right[column..].chunks(row.len())) {
            let Some(elements) = elements.first_chunk::<N>() else { break };
            for (total, element) in totals.iter_mut().zip(elements) {
                *total = total.wrapping_add(u32::from_le(*factor).wrapping_mul(u32::from_le(*element)));
            }
        }
        *block = totals.map(u32::to_le);
        column += N;
    }
    column
}

/// Writes the answer to a request to the front of `message` and returns its length, [`Order::answer_bytes`].
///
/// Nothing is copied on the way if both messages begin at an address that is aligned for words, as memory of any heap
/// is.
///
/// # Panics
///
/// If `message` is too short.
pub fn answer(request: &Request<'_>, message: &mut [u8]) -> usize {
    let order = request.order;
    let total = order.answer_bytes();
    let (header, body) = message[..total].split_at_mut(HEADER_BYTES);
    write_words(header, [order.get() as u32, request.sequence].iter());
    match (request.left.words(), request.right.words(), <[u32]>::mut_from_bytes(body)) {
        (Some(left), Some(right), Ok(product)) => multiply(order, left, right, product),
        _ => multiply_bytes(order, request.left, request.right, body),
    }
    total
}

/// Multiplies matrices whose words may begin at any address.
#[cold]
fn multiply_bytes(order: Order, left: Elements<'_>, right: Elements<'_>, product: &mut [u8]) {
    let (places, _) = product.as_chunks_mut::<WORD_BYTES>();
    for (place, bytes) in places.iter_mut().enumerate() {
        let (row, column) = (place / order.get(), place % order.get());
        let factors = left.iter().skip(row * order.get()).take(order.get());
        let elements = right.iter().skip(column).step_by(order.get());
        let sum = factors.zip(elements).fold(0u32, |sum, (one, other)| sum.wrapping_add(one.wrapping_mul(other)));
        *bytes = sum.to_le_bytes();
    }
}

/// Returns the order at the front of a message; `None` while its bytes are incomplete.
fn announced_order(received: &[u8]) -> Result<Option<Order>, Malformed> {
    match received.first_chunk::<WORD_BYTES>() {
        Some(bytes) => Order::new(u32::from_le_bytes(*bytes)).map(Some),
        None => Ok(None),
    }
}

/// Splits the first `total` bytes, a whole message, into header and elements; `None` while they are incomplete.
fn split_message(received: &[u8], total: usize) -> Option<([u32; 2], &[[u8; WORD_BYTES]])> {
    let (words, _) = received.get(..total)?.as_chunks::<WORD_BYTES>();
    let (header, elements) = words.split_first_chunk::<2>()?;
    Some((header.map(u32::from_le_bytes), elements))
}

/// Writes `words` to `bytes`, which is exactly as long.
fn write_words<'a>(bytes: &mut [u8], words: impl Iterator<Item = &'a u32>) {
    let (places, _) = bytes.as_chunks_mut::<WORD_BYTES>();
    for (place, word) in places.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
}
