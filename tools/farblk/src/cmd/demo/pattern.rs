// SPDX-License-Identifier: GPL-2.0
//! What the demo writes to its disk.

/// Fills a chunk with what no other chunk has.
pub fn stamp(data: &mut [u8], chunk: u64) {
    for (index, word) in data.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&stamp_of(chunk, index as u64).to_le_bytes());
    }
}

/// Returns true if a chunk is as [`stamp`] has filled it.
pub fn is_stamped(data: &[u8], chunk: u64) -> bool {
    let mut words = data.chunks_exact(8).enumerate();
    words.all(|(index, word)| *word == stamp_of(chunk, index as u64).to_le_bytes())
}

fn stamp_of(chunk: u64, index: u64) -> u64 {
    ((chunk << 32) | index).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6661_7262_6c6b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stamped_is_known() {
        let mut data = [0; 8192];
        stamp(&mut data, 7);
        assert!(is_stamped(&data, 7));
        assert!(!is_stamped(&data, 8));
        data[8191] ^= 1;
        assert!(!is_stamped(&data, 7));
        assert!(!is_stamped(&[0; 4096], 0));
    }
}
