//! Faults of processors that a machine works around.

/// Faults of a processor, by the numbers that it gives itself (`mvendorid`, `marchid`, `mimpid`).
///
/// Source: SiFive's errata of the U74 core complex, CIP-453 and CIP-1200. The versions are those that Linux names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errata {
    /// Invalidating the translation of one page may leave it: all translations are invalidated instead (CIP-1200).
    pub flushes_leave_pages: bool,
    /// The address of a failed instruction fetch lacks its sign (CIP-453).
    pub fetch_faults_lack_sign: bool,
}

/// SiFive's number as a vendor (JEDEC).
const SIFIVE: u64 = 0x489;
/// Architectures of SiFive's cores: of the series 7, and the first.
const SERIES_7: u64 = 1 << 63 | 7;
const FIRST: u64 = 1;

impl Errata {
    /// Returns the faults of the processor with these numbers.
    pub const fn of(vendor: u64, architecture: u64, implementation: u64) -> Errata {
        let is_of_sifive = vendor == SIFIVE;
        let is_of_series_7 = is_of_sifive && architecture == SERIES_7;
        // The number of an implementation is its date, with more above it in later ones.
        let is_mended = implementation & 0xff_ffff > 0x20_0630 || implementation == 0x120_0626;
        let has_signs = implementation < 0x2018_1004 || implementation > 0x2019_1105;
        Errata {
            flushes_leave_pages: (is_of_series_7 || is_of_sifive && architecture == FIRST) && !is_mended,
            fetch_faults_lack_sign: is_of_series_7 && !has_signs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_follow_the_numbers_of_a_processor() {
        let both = Errata { flushes_leave_pages: true, fetch_faults_lack_sign: true };
        let pages = Errata { fetch_faults_lack_sign: false, ..both };
        for (numbers, expected) in [
            // The emulator, and Rocket.
            ((0, 42, 42), Errata::default()),
            ((0, 1, 0x2018_1004), Errata::default()),
            // The U74 of the first boards, and of the JH7110.
            ((SIFIVE, SERIES_7, 0x2018_1004), both),
            ((SIFIVE, SERIES_7, 0x421_0427), Errata::default()),
            ((SIFIVE, SERIES_7, 0x2019_1105), both),
            ((SIFIVE, SERIES_7, 0x2019_1106), pages),
            ((SIFIVE, SERIES_7, 0x120_0626), Errata::default()),
            ((SIFIVE, FIRST, 0x2018_1004), pages),
        ] {
            assert_eq!(Errata::of(numbers.0, numbers.1, numbers.2), expected, "{numbers:x?}");
        }
    }
}
