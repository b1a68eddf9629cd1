//! The hash functions of directories with an index: half of MD4 (R. Rivest, RFC 1320), TEA (D. Wheeler and R. Needham,
//! 1994), and the first one of ext3.

use crate::superblock::Layout;

/// The hash that no name has: the end of a directory.
const END: u32 = 0xffff_fffe;

/// The hash of a name: the first one decides the leaf, both the order of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameHash {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// Returns the hash of a name by a directory's function; `None` if the function is not known.
pub(crate) fn hash(layout: &Layout, function: u8, name: &[u8]) -> Option<NameHash> {
    let widened = |byte: u8| if layout.hash_is_unsigned { u32::from(byte) } else { byte as i8 as u32 };
    let mut state = layout.hash_key;
    let (major, minor) = match function {
        0 => (first(name, widened), 0),
        1 => {
            for piece in pieces(name, 32) {
                half_md4(&mut state, &words::<8>(piece.0, piece.1, widened));
            }
            (state[1], state[2])
        }
        2 => {
            for piece in pieces(name, 16) {
                tea(&mut state, &words::<4>(piece.0, piece.1, widened));
            }
            (state[0], state[1])
        }
        _ => return None,
    };
    // The lowest bit says in an index that a leaf continues the one before it.
    let major = major & !1;
    Some(NameHash { major: if major == END { END - 2 } else { major }, minor })
}

/// Returns the pieces of a name, each with the number of bytes from it on.
fn pieces(name: &[u8], size: usize) -> impl Iterator<Item = (&[u8], usize)> {
    name.chunks(size).zip((0..name.len()).step_by(size)).map(|(piece, at)| (piece, name.len() - at))
}

/// Returns the words of a piece: four bytes each, filled up with the number of bytes that are left.
fn words<const COUNT: usize>(piece: &[u8], left: usize, widened: impl Fn(u8) -> u32) -> [u32; COUNT] {
    let filling = left as u32 | (left as u32) << 8;
    let filling = filling | filling << 16;
    let mut words = [filling; COUNT];
    for (word, bytes) in words.iter_mut().zip(piece.chunks(4)) {
        *word = bytes.iter().fold(filling, |word, byte| widened(*byte).wrapping_add(word << 8));
    }
    words
}

fn first(name: &[u8], widened: impl Fn(u8) -> u32) -> u32 {
    let (mut last, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
    for byte in name {
        let mut next = before.wrapping_add(last ^ widened(*byte).wrapping_mul(7_152_373));
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7fff_ffff);
        }
        (before, last) = (last, next);
    }
    last << 1
}

fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    let (mut a, mut b, mut sum) = (state[0], state[1], 0_u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        let mixed = (b << 4).wrapping_add(key[0]) ^ b.wrapping_add(sum) ^ (b >> 5).wrapping_add(key[1]);
        a = a.wrapping_add(mixed);
        let mixed = (a << 4).wrapping_add(key[2]) ^ a.wrapping_add(sum) ^ (a >> 5).wrapping_add(key[3]);
        b = b.wrapping_add(mixed);
    }
    state[0] = state[0].wrapping_add(a);
    state[1] = state[1].wrapping_add(b);
}

/// Three rounds of eight steps, each with the words in an order of its own.
fn half_md4(state: &mut [u32; 4], words: &[u32; 8]) {
    const ORDERS: [[usize; 8]; 3] = [[0, 1, 2, 3, 4, 5, 6, 7], [1, 3, 5, 7, 0, 2, 4, 6], [3, 7, 2, 6, 1, 5, 0, 4]];
    const SHIFTS: [[u32; 4]; 3] = [[3, 7, 11, 19], [3, 5, 9, 13], [3, 9, 11, 15]];
    const ADDED: [u32; 3] = [0, 0x5a82_7999, 0x6ed9_eba1];
    let mix = [
        |x: u32, y: u32, z: u32| z ^ (x & (y ^ z)),
        |x: u32, y: u32, z: u32| (x & y).wrapping_add((x ^ y) & z),
        |x: u32, y: u32, z: u32| x ^ y ^ z,
    ];
    let mut registers = *state;
    for round in 0..3 {
        for step in 0..8 {
            let [a, b, c, d] = registers;
            let sum = a.wrapping_add(mix[round](b, c, d));
            let sum = sum.wrapping_add(words[ORDERS[round][step]]).wrapping_add(ADDED[round]);
            let turned = sum.rotate_left(SHIFTS[round][step % 4]);
            // The next step has its registers one place further.
            registers = [d, turned, b, c];
        }
    }
    for (word, register) in state.iter_mut().zip(registers) {
        *word = word.wrapping_add(register);
    }
}
