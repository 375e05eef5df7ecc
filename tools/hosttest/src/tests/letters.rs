// SPDX-License-Identifier: GPL-2.0

//! How letters lie in pages, and what the server counts for them, with pages of all sizes.

use crate::link::letter::layout::Layout;
use crate::proto::wire::{ECHO_COUNT_MAX, ECHO_SIZE_MAX, SCRATCH_MAX, SCRATCH_UNIT};
use crate::session::stranger::{echo_letters, in_pages, may_have_scratch};

/// The bytes of a global route header.
const HEADER: usize = 40;
const PAGES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

fn layout(count: u16, body: usize, page: usize) -> Layout {
    Layout::new(count, (HEADER, body), page).unwrap()
}

/// The bytes that an echo of `count` datagrams takes.
fn echo(count: u16, body: usize, page: usize) -> u32 {
    (layout(echo_letters(count), body, page).pages() * page) as u32
}

#[test]
fn each_letter_has_its_place() {
    for page in PAGES {
        for body in (1..=usize::from(ECHO_SIZE_MAX)).step_by(61).chain([4096]) {
            for count in 1..=96 {
                let layout = layout(count, body, page);
                // What the kernel makes of it.
                let pieces = layout.pages() * (page / layout.piece());
                let headers = layout.headers() * (layout.piece() / layout.header());
                assert!(layout.piece() >= body && layout.header() >= HEADER);
                assert_eq!((layout.piece() % 128, layout.header() % 128), (0, 0));
                assert!(headers >= count.into());
                assert_eq!(layout.pieces(), layout.headers() + usize::from(count));
                // No page is there for nothing.
                assert!(pieces >= layout.pieces());
                assert!(pieces - page / layout.piece() < layout.pieces());
            }
        }
    }
}

#[test]
fn letters_share_pages() {
    let pages = |count, body| PAGES.map(|page| layout(count, body, page).pages());
    assert_eq!(pages(5, 8), [1, 1, 1]);
    assert_eq!(pages(52, 4096), [54, 14, 4]);
    assert_eq!(pages(96, 4096), [99, 25, 7]);
    // Two in a page of 4 KiB.
    assert_eq!(pages(10, 1500), [6, 2, 1]);
}

#[test]
fn letters_that_no_page_has_room_for_are_none() {
    assert_eq!(Layout::new(1, (HEADER, 4097), 4096), None);
    assert_eq!(Layout::new(1, (4097, 8), 4096), None);
    assert_eq!(Layout::new(1, (HEADER, usize::MAX), 4096), None);
    assert!(Layout::new(1, (HEADER, 4097), 64 << 10).is_some());
    assert_eq!(
        Layout::new(0, (HEADER, 8), 4096).map(|layout| layout.pages()),
        Some(0)
    );
}

#[test]
fn a_host_may_have_the_largest_of_each_with_all_pages() {
    for page in PAGES {
        let region = in_pages(SCRATCH_MAX, page as u32);
        // Not those of the longest bodies: as many as fit in a page make the difference.
        let sizes = 1..=ECHO_SIZE_MAX;
        let echoes = sizes.map(|size| echo(ECHO_COUNT_MAX, size.into(), page));
        let echo = echoes.max().unwrap_or(0);
        assert!(may_have_scratch(0, 0, region));
        assert!(
            may_have_scratch(region, region, echo),
            "{region} and {echo} bytes"
        );
    }
}

#[test]
fn whole_pages_are_counted() {
    assert_eq!(
        PAGES.map(|page| in_pages(SCRATCH_UNIT, page as u32)),
        [4 << 10, 16 << 10, 64 << 10]
    );
    assert_eq!(
        PAGES.map(|page| in_pages(60 << 10, page as u32)),
        [60 << 10, 64 << 10, 64 << 10]
    );
    assert_eq!(
        PAGES.map(|page| echo(1, 8, page)),
        [4 << 10, 16 << 10, 64 << 10]
    );
    assert_eq!(in_pages(u32::MAX, 64 << 10), u32::MAX);
    // So a host has some of them with any page size.
    assert!(may_have_scratch(256 << 10, 256 << 10, echo(1, 8, 64 << 10)));
    assert!(!may_have_scratch(320 << 10, 320 << 10, echo(1, 8, 4 << 10)));
}
