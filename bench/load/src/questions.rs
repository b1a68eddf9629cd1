//! The requests of a run and the answers that are right, computed before the clock starts.

use matrix::{Answer, HEADER_BYTES, Order, encode_request, multiply};

/// Position of the sequence number in a request.
const SEQUENCE: std::ops::Range<usize> = HEADER_BYTES / 2..HEADER_BYTES;

/// A fixed number of questions of one order. Runs send them in turn, each time with another sequence number.
pub struct Questions {
    order: Order,
    questions: Vec<Question>,
}

struct Question {
    request: Vec<u8>,
    product: Vec<u32>,
}

impl Questions {
    /// Makes `count` pairs of matrices, the same ones each time, and multiplies them.
    pub fn new(order: Order, count: usize) -> Questions {
        let mut random = SplitMix(order.get() as u64);
        let questions = (0..count)
            .map(|_| {
                let left: Vec<u32> = (0..order.elements()).map(|_| random.next()).collect();
                let right: Vec<u32> = (0..order.elements()).map(|_| random.next()).collect();
                let mut product = vec![0; order.elements()];
                multiply(order, &left, &right, &mut product);
                let mut request = vec![0; order.request_bytes()];
                encode_request(order, 0, &left, &right, &mut request);
                Question { request, product }
            })
            .collect();
        Questions { order, questions }
    }

    /// Appends question `number`, modulo their count, to `outgoing`.
    pub fn ask(&self, number: usize, sequence: u32, outgoing: &mut Vec<u8>) {
        let request = &self.questions[number % self.questions.len()].request;
        let start = outgoing.len();
        outgoing.extend_from_slice(request);
        outgoing[start..][SEQUENCE].copy_from_slice(&sequence.to_le_bytes());
    }

    /// Whether `answer` has the product of question `number`. The sequence number is the caller's to check.
    pub fn is_answer(&self, number: usize, answer: &Answer<'_>) -> bool {
        let product = &self.questions[number % self.questions.len()].product;
        answer.order == self.order && answer.product.iter().eq(product.iter().copied())
    }
}

/// Sebastiano Vigna's SplitMix64: small, and good enough that no two matrices are alike.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use matrix::{Decoded, Request, encode_answer};

    #[test]
    fn a_question_carries_its_sequence_number_and_only_its_product_answers_it() {
        let order = Order::new(3).unwrap();
        let questions = Questions::new(order, 2);
        let mut outgoing = vec![9];
        questions.ask(3, 77, &mut outgoing);
        let Ok(Decoded::Complete(request, used)) = Request::decode(&outgoing[1..]) else { panic!("not a request") };
        assert_eq!((request.order, request.sequence, used), (order, 77, outgoing.len() - 1));

        let (left, right): (Vec<u32>, Vec<u32>) = (request.left.iter().collect(), request.right.iter().collect());
        let mut product = vec![0; order.elements()];
        multiply(order, &left, &right, &mut product);
        let mut message = vec![0; order.answer_bytes()];
        encode_answer(order, 77, &product, &mut message);
        let Ok(Decoded::Complete(answer, _)) = Answer::decode(&message) else { panic!("not an answer") };
        assert!(questions.is_answer(1, &answer));
        assert!(!questions.is_answer(0, &answer));
    }
}
