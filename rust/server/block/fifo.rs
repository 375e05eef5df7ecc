// SPDX-License-Identifier: GPL-2.0

//! A queue of boxes that are linked by a field of their own: it allocates nothing, and is never
//! full.

#![forbid(unsafe_code)]

use kernel::prelude::*;

/// An element of a [`Fifo`].
pub(super) trait Linked: Sized {
    /// Returns the field that links it to another element, which nothing else uses.
    fn link(&mut self) -> &mut Option<KBox<Self>>;
}

/// Elements in the order in which they were pushed. Dropping it drops them.
pub(super) struct Fifo<T: Linked> {
    /// The next elements to be popped, the first one first.
    front: Option<KBox<T>>,
    /// Those behind them, the last one first: they are turned round when `front` is empty.
    back: Option<KBox<T>>,
}

impl<T: Linked> Fifo<T> {
    /// Makes an empty one.
    pub(super) const fn new() -> Self {
        Self {
            front: None,
            back: None,
        }
    }

    /// Appends an element.
    pub(super) fn push(&mut self, mut element: KBox<T>) {
        *element.link() = self.back.take();
        self.back = Some(element);
    }

    /// Returns the first element.
    pub(super) fn first(&mut self) -> Option<&mut KBox<T>> {
        if self.front.is_none() {
            while let Some(mut element) = self.back.take() {
                self.back = core::mem::replace(element.link(), self.front.take());
                self.front = Some(element);
            }
        }
        self.front.as_mut()
    }

    /// Takes the first element.
    pub(super) fn pop(&mut self) -> Option<KBox<T>> {
        self.first()?;
        let mut element = self.front.take()?;
        self.front = element.link().take();
        Some(element)
    }
}

impl<T: Linked> Drop for Fifo<T> {
    fn drop(&mut self) {
        // One by one: an element that drops with a link drops what is behind it, and so on, each on
        // a stack frame of its own.
        while self.pop().is_some() {}
    }
}
