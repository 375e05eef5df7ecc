// SPDX-License-Identifier: GPL-2.0

//! What KUnit suites post: owners of sends and receives, and their memory.

use super::*;

/// Things that came in, in order.
#[pin_data]
pub(super) struct Inbox<T> {
    #[pin]
    pub(super) things: IrqSaveSpinLock<KVec<T>>,
    #[pin]
    pub(super) arrived: Completion,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> Result<impl PinInit<Self>> {
        let things = KVec::with_capacity(64, GFP_KERNEL)?;
        Ok(pin_init!(Self {
            things <- new_irqsave_spinlock!(things),
            arrived <- Completion::new(),
        }))
    }

    /// Any context. Without room, the thing is dropped.
    pub(super) fn put(&self, thing: T) {
        let _ = self.things.lock().push_within_capacity(thing);
        self.arrived.complete();
    }

    /// Waits for the next one.
    pub(super) fn take(&self) -> Result<T> {
        self.arrived.wait_timeout(TIMEOUT_MS)?;
        self.things.lock().remove(0).map_err(|_| EIO)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.things.lock().len()
    }
}

/// Counts the owners that exist.
pub(super) struct Alive(pub(super) Arc<Atomic<i32>>);

impl Alive {
    pub(super) fn new(count: &Arc<Atomic<i32>>) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The owner of a send.
pub(super) struct Owner {
    pub(super) number: u32,
    pub(super) block: Option<Block>,
    pub(super) piece: Option<DmaPiece>,
    /// All of it is the message.
    pub(super) message: Option<DmaBuffer>,
    pub(super) mr: Option<Mr>,
    /// Room for the result of an atomic operation.
    pub(super) result: Option<AtomicResult>,
    /// How often it is to be written again when that has completed, and where to.
    pub(super) again: Option<(u32, RemoteRange)>,
    pub(super) _alive: Alive,
}

impl SendOwner for Owner {
    type Memory = Block;

    fn memory(&self) -> Option<&Block> {
        self.block.as_ref()
    }

    fn message(&self) -> Option<(&DmaBuffer, usize)> {
        let message = self.message.as_ref()?;
        Some((message, message.len()))
    }

    fn mr(&self) -> Option<&Mr> {
        self.mr.as_ref()
    }

    fn piece(&self) -> Option<&DmaPiece> {
        self.piece.as_ref()
    }

    fn result(&mut self) -> Option<&mut AtomicResult> {
        self.result.as_mut()
    }
}

/// The owner of a receive.
pub(super) struct Landing {
    pub(super) number: u32,
    pub(super) buffer: DmaBuffer,
    pub(super) piece: Option<DmaPiece>,
    /// It is for answers; what became of it.
    pub(super) answer: Option<Result>,
    /// It has invalidated a key.
    pub(super) invalidated: bool,
    /// It was used up by an RDMA WRITE.
    pub(super) written: bool,
    /// The immediate data; of an answer, the slot of the request.
    pub(super) immediate: Option<u32>,
    /// How often it is to be posted again when something was received.
    pub(super) again: u32,
    /// The task that runs while this receive is being posted, if that is possible.
    pub(super) rival: Option<Arc<Rival>>,
    pub(super) _alive: Alive,
}

impl RecvOwner for Landing {
    fn buffers(&mut self) -> [Option<RecvBuffer<'_>>; RECV_BUFFERS] {
        if let Some(rival) = self.rival.take() {
            rival.race();
        }
        let piece = self.piece.as_ref().map(RecvBuffer::Devices);
        [Some(RecvBuffer::Cpu(&mut self.buffer)), piece]
    }
}

/// Memory that is read or written in pieces: the first `len` bytes of `memory`.
#[derive(Clone)]
pub(super) struct Block {
    pub(super) memory: Arc<PageChunks>,
    pub(super) len: usize,
    pub(super) piece: usize,
    pub(super) writable: bool,
    /// How much of the first piece, and of the end of each, is left out.
    pub(super) start: u32,
    pub(super) gap: u32,
}

impl Block {
    /// New memory that is full of `byte`.
    pub(super) fn new(pieces: usize, piece: usize, byte: u8) -> Result<Self> {
        let len = pieces * piece;
        let memory = PageChunks::alloc(len.next_multiple_of(PAGE_SIZE), NumaNode::NO_NODE)?;
        fill(&memory, len, byte);
        Ok(Self {
            memory,
            len,
            piece,
            writable: true,
            start: 0,
            gap: 0,
        })
    }
}

// SAFETY: `PageChunks` is memory for devices; its segments are valid as long as the reference to
// it. The fields do not change.
unsafe impl Segmented for Block {
    fn writable(&self) -> bool {
        self.writable
    }

    fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        let segments = self.memory.segments(0, self.len);
        segments.flat_map(move |segment| {
            let (start, len) = (segment.offset(), segment.len());
            // CAST: Pieces are small.
            let piece = self.piece as u32;
            (0..len).step_by(self.piece).map(move |at| {
                let skip = if at == 0 { self.start } else { 0 };
                let len = piece.min(len - at).saturating_sub(skip + self.gap);
                // SAFETY: The page is one of the memory's.
                unsafe { Segment::new(segment.page(), start + at + skip, len) }
            })
        })
    }
}

/// The first `len` bytes of `memory`.
pub(super) fn bytes(memory: &PageChunks, len: usize) -> impl Iterator<Item = *mut u8> + '_ {
    memory.segments(0, len).flat_map(|segment| {
        // SAFETY: The page is one of `memory`, in the direct map.
        let page = unsafe { bindings::farblk_page_address(segment.page().as_ptr()) };
        let (start, len) = (segment.offset() as usize, segment.len() as usize);
        (start..start + len).map(move |at| page.cast::<u8>().wrapping_add(at))
    })
}

/// Fills the first `len` bytes of `memory`.
pub(super) fn fill(memory: &PageChunks, len: usize, byte: u8) {
    for place in bytes(memory, len) {
        // SAFETY: The place is in `memory`, to which there are no references.
        unsafe { place.write_volatile(byte) };
    }
}

/// Returns true if each of the first `len` bytes of `memory` is `byte`.
pub(super) fn is_full_of(memory: &PageChunks, len: usize, byte: u8) -> bool {
    // SAFETY: As in `fill()`.
    bytes(memory, len).all(|place| unsafe { place.read_volatile() } == byte)
}

/// The places of a piece.
pub(super) fn piece_bytes(piece: &DmaPiece) -> impl Iterator<Item = *mut u8> + '_ {
    piece.segments().flat_map(|segment| {
        // SAFETY: The page is one of the piece, in the direct map.
        let page = unsafe { bindings::farblk_page_address(segment.page().as_ptr()) };
        let (start, len) = (segment.offset() as usize, segment.len() as usize);
        (start..start + len).map(move |at| page.cast::<u8>().wrapping_add(at))
    })
}

/// Fills a piece.
pub(super) fn fill_piece(piece: &DmaPiece, byte: u8) {
    for place in piece_bytes(piece) {
        // SAFETY: The place is in the piece, to which there are no references.
        unsafe { place.write_volatile(byte) };
    }
}

/// Returns true if each byte of a piece is `byte`.
pub(super) fn piece_is_full_of(piece: &DmaPiece, byte: u8) -> bool {
    // SAFETY: As in `fill_piece()`.
    piece_bytes(piece).all(|place| unsafe { place.read_volatile() } == byte)
}
