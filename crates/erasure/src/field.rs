//! GF(2⁸): bytes as polynomials over GF(2), modulo x⁸ + x⁴ + x³ + x² + 1.

/// The modulus, as RAID 6 and ISA-L have it: `x` generates all nonzero elements.
const MODULUS: u16 = 0x11d;

/// The product, bit by bit: what the tables are made of.
const fn product(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut sum) = (a as u16, b, 0);
    while b != 0 {
        if b & 1 == 1 {
            sum ^= a;
        }
        a <<= 1;
        if a & 0x100 != 0 {
            a ^= MODULUS;
        }
        b >>= 1;
    }
    sum as u8
}

/// The products of a factor with all low halves of a byte, then with all high halves: what byte shuffles look up.
pub(crate) type Nibbles = [u8; 32];

/// By factor. 8 KiB; of which an operation touches 32 bytes for each of its factors.
pub(crate) static NIBBLES: [Nibbles; 256] = {
    let mut all = [[0; 32]; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut half = 0;
        while half < 16 {
            all[factor][half] = product(factor as u8, half as u8);
            all[factor][16 + half] = product(factor as u8, (half as u8) << 4);
            half += 1;
        }
        factor += 1;
    }
    all
};

/// By factor: multiplication as a matrix over GF(2), as `GF2P8AFFINEQB` takes it: byte `7 - i` has the bits of the operand whose
/// sum is bit `i` of the product. (`GF2P8MULB` is of another modulus, 0x11b.)
#[cfg(any(target_arch = "x86_64", test))]
pub(crate) static AFFINE: [u64; 256] = {
    let mut all = [0; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut operand = 0;
        while operand < 8 {
            let column = product(factor as u8, 1 << operand);
            let mut bit = 0;
            while bit < 8 {
                all[factor] |= ((column >> bit & 1) as u64) << (8 * (7 - bit) + operand);
                bit += 1;
            }
            operand += 1;
        }
        factor += 1;
    }
    all
};

static INVERSES: [u8; 256] = {
    let mut all = [0; 256];
    let mut of = 1;
    while of < 256 {
        // The nonzero elements are a group of 255: the inverse is the 254th power.
        let (mut power, mut times) = (1, 0);
        while times < 254 {
            power = product(power, of as u8);
            times += 1;
        }
        all[of] = power;
        of += 1;
    }
    all
};

/// The product.
#[inline]
pub(crate) fn multiply(a: u8, b: u8) -> u8 {
    let table = &NIBBLES[usize::from(a)];
    table[usize::from(b & 15)] ^ table[usize::from(16 | b >> 4)]
}

/// What times `of` is 1; 0 for 0, which has none.
pub(crate) fn inverse(of: u8) -> u8 {
    INVERSES[usize::from(of)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the definition: the product of the polynomials, and of that the remainder.
    fn remainder_of_product(a: u8, b: u8) -> u8 {
        let mut product = (0..8).filter(|bit| b >> bit & 1 == 1).fold(0u16, |sum, bit| sum ^ u16::from(a) << bit);
        for bit in (8..16).rev() {
            if product >> bit & 1 == 1 {
                product ^= MODULUS << (bit - 8);
            }
        }
        u8::try_from(product).unwrap()
    }

    #[test]
    fn products_are_those_of_polynomials() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(multiply(a, b), remainder_of_product(a, b), "{a} times {b}");
            }
        }
    }

    #[test]
    fn what_is_multiplied_by_its_inverse_is_one() {
        assert_eq!(inverse(0), 0);
        for a in 1..=255 {
            assert_eq!(remainder_of_product(a, inverse(a)), 1, "{a}");
        }
    }

    #[test]
    fn matrices_multiply() {
        for factor in 0..=255u8 {
            let rows = AFFINE[usize::from(factor)].to_be_bytes();
            for operand in 0..=255u8 {
                let bits = rows.iter().enumerate().map(|(bit, row)| ((row & operand).count_ones() as u8 & 1) << bit);
                assert_eq!(bits.sum::<u8>(), remainder_of_product(factor, operand), "{factor} times {operand}");
            }
        }
    }
}
