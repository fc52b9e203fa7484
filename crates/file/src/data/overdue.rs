//! What was named too late goes out of maps again.
//!
//! Whether rows may be named is asked right before that is sent. But a client may stand still between the two for hours (its host
//! is suspended, say): others have taken its rows for lost by then, and the map names what is another's. Whoever took that out
//! of the map one day would free it. **So whoever finds that a change of a map has ended too late frees nothing by it, neither what
//! it named nor what it named no more**, and takes out what it named. What was to be written has failed, and is written again by
//! who has it.

use std::rc::Rc;

use super::content::{Content, Inode, State};
use super::file::{Contents, TRIES_MAX, Written};
use super::span::{SpanId, touched};
use super::stripe::StripeId;
use crate::error::Error;

/// The stripes of what was written.
pub(crate) fn ids<'a>(written: impl Iterator<Item = &'a Written>) -> Vec<StripeId> {
    written.map(|written| written.stripe.id).collect()
}

impl Contents {
    /// An inode came to `stand` so too late: what was `written` goes out of the file's map, wherever that is by now. What lay in
    /// the inode `before` lies there again.
    pub(crate) async fn take_out(
        self: &Rc<Self>,
        inode: &dyn Inode,
        (before, stand): (&State, &State),
        written: &[Written],
    ) -> Result<(), Error> {
        let ids = ids(written.iter());
        tracing::warn!(inode = inode.number(), "what was written is taken out again, as it came too late");
        for _ in 0..TRIES_MAX {
            let (state, version) = inode.load(true).await?;
            let lay_inside = matches!(&before.content, Content::Inline(bytes) if !bytes.is_empty());
            let new = match &state.content {
                _ if *state == *stand && lay_inside => before.clone(),
                // They are nowhere else.
                _ if lay_inside => {
                    return Err(Error::Unavailable("others have changed bytes that came too late".into()));
                }
                Content::Extents(map) => {
                    let mut map = map.clone();
                    if !map.take_out(&ids) {
                        return Ok(());
                    }
                    State { content: Content::Extents(map), size: state.size }
                }
                Content::Spans(spans) => {
                    for written in written {
                        let span = touched(&(written.at..written.end())).start;
                        self.take_out_of_span(SpanId { inode: inode.number(), map: spans.map, span }, &ids).await?;
                    }
                    return Ok(());
                }
                Content::Inline(_) => return Ok(()),
            };
            // Also where a lock was lost meanwhile: whoever has it now must not be left with it.
            if inode.store_anyway(version, new).await? {
                return Ok(());
            }
        }
        Err(Error::Unavailable("others change the file all the time".into()))
    }

    /// Stripes go out of a span's map.
    pub(crate) async fn take_out_of_span(&self, id: SpanId, stripes: &[StripeId]) -> Result<(), Error> {
        tracing::warn!(inode = id.inode, span = id.span, "what was written is taken out again, as it came too late");
        let taken_out = self.spans.ensure(id, |span| {
            let mut span = span.unwrap_or_default();
            let is_any = span.map.take_out(stripes);
            Ok((Some(span).filter(|_| is_any), ()))
        });
        taken_out.await
    }
}
