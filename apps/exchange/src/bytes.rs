//! The bytes that a connection carries in one direction: each end can make any of them anew, and no two words are the
//! same soon, so a byte that is lost, repeated or in another place is found at once.

/// Bytes of a word.
const WORD: u64 = 8;

/// A reader of the bytes of one direction.
#[derive(Clone, Debug)]
pub struct Bytes {
    seed: u64,
    position: u64,
}

impl Bytes {
    /// Returns a reader at the first byte of a direction of a connection.
    pub fn new(seed: u64, connection: u64, is_from_server: bool) -> Bytes {
        Bytes { seed: mix(seed ^ mix(connection << 1 | u64::from(is_from_server))), position: 0 }
    }

    /// Returns the number of bytes that were read.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Reads as many bytes as there is room for.
    pub fn fill(&mut self, room: &mut [u8]) {
        let begun = (self.position.wrapping_neg() % WORD) as usize;
        let (begun, room) = room.split_at_mut(begun.min(room.len()));
        self.fill_within_word(begun);
        let mut words = room.chunks_exact_mut(WORD as usize);
        for room in &mut words {
            room.copy_from_slice(&self.word());
            self.position += WORD;
        }
        self.fill_within_word(words.into_remainder());
    }

    /// Reads bytes of the current word, which has as many.
    fn fill_within_word(&mut self, room: &mut [u8]) {
        let skipped = (self.position % WORD) as usize;
        room.copy_from_slice(&self.word()[skipped..skipped + room.len()]);
        self.position += room.len() as u64;
    }

    /// Returns the current word.
    fn word(&self) -> [u8; WORD as usize] {
        mix(self.seed.wrapping_add(self.position / WORD)).to_le_bytes()
    }
}

/// Mixes the bits of a number (the finish of splitmix64).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
