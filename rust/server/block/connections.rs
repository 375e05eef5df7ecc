// SPDX-License-Identifier: GPL-2.0

//! What a session has of an export of a block device: its I/O connections.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use kernel::sync::Arc;

use crate::proto::{
    Access,
    Name,
    Terms, //
};
use crate::rdma::cm::CmId;
use crate::server::{
    backend::Block,
    block::{
        adapter::User,
        connection::{
            credit_max,
            Connection,
            Label,
            Parts, //
        },
    },
    ram::none,
    session::{
        Session,
        CREDIT, //
    },
};

/// A session's I/O connections. Dropping it waits until nothing is under way any more; see
/// [`Connection::close`].
pub(in crate::server) struct Connections {
    /// The connections that are up; the index is the queue.
    queues: KVec<Option<Connection>>,
    block: Arc<Block>,
    access: Access,
    terms: Terms,
    label: Label,
    user: User,
}

impl Connections {
    /// No connections, and room for `queues` of them. May sleep.
    pub(in crate::server) fn new(
        user: User,
        block: &Arc<Block>,
        access: Access,
        terms: Terms,
        (export, host): (Name, Name),
        queues: u16,
    ) -> Result<Self> {
        Ok(Self {
            queues: none(usize::from(queues))?,
            block: block.clone(),
            access,
            terms,
            label: Label {
                export,
                host,
                index: 0,
            },
            user,
        })
    }

    /// Whether there is a free place for I/O connection `queue`.
    pub(in crate::server) fn has_room(&self, queue: u16) -> bool {
        matches!(self.queues.get(usize::from(queue)), Some(None))
    }

    /// Makes I/O connection `queue`, ready to receive. May sleep.
    pub(in crate::server) fn connect(
        &mut self,
        id: &Arc<CmId>,
        queue: u16,
        session: &Arc<Session>,
    ) -> Result {
        let adapter = &self.user.adapter;
        let most = credit_max(self.terms.depth);
        let index = usize::from(queue);
        let place = self.queues.get_mut(index).ok_or(EINVAL)?;
        // Those of different sessions are spread, too.
        let vector = index.wrapping_add(session.spread());
        let connection = Connection::new(
            id,
            adapter.seat(vector, most.min(CREDIT), most)?,
            &Parts {
                session,
                label: Label {
                    index: queue,
                    ..self.label
                },
                block: &self.block,
                access: self.access,
                terms: self.terms,
                blocked: &adapter.blocked,
            },
        )?;
        *place = Some(connection);
        Ok(())
    }

    /// Lets no more commands begin. Whether all that have are answered. May sleep.
    pub(in crate::server) fn drain(&self) -> bool {
        let up = self.queues.iter().flatten();
        up.fold(true, |drained, connection| connection.drain() && drained)
    }

    /// Takes back [`Connections::connect`]. May sleep.
    pub(in crate::server) fn disconnect(&mut self, queue: u16) {
        let place = self.queues.get_mut(usize::from(queue));
        if let Some(connection) = place.and_then(Option::take) {
            connection.close();
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        // All fail before any is waited for.
        for connection in self.queues.iter().flatten() {
            connection.cut();
        }
        for connection in self.queues.iter().flatten() {
            connection.close();
        }
    }
}
