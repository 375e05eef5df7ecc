// SPDX-License-Identifier: GPL-2.0

//! A spinlock that is also taken where interrupts are disabled, that of the kernel crate.

pub(crate) use kernel::sync::{
    new_spinlock_irq as new_irqsave_spinlock,
    SpinLockIrq as IrqSaveSpinLock, //
};
