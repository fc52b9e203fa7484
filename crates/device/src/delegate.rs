//! What hands commands on writes down none of them: the list of methods stands here, once.

/// The methods of a [`Namespace`](crate::Namespace) that hand a command on to what is behind: all of them, or those named after
/// the semicolon, where a wrapper does the others in its own way. The trait has no defaults, so none can be forgotten. `$this`
/// (`self`) is matched with the patterns; each has the expression of what is behind.
#[macro_export]
macro_rules! delegate_namespace {
    ($this:ident => $arms:tt) => {
        $crate::delegate_namespace!($this => $arms; info, read, write, flush, compare, compare_and_write, write_zeroes, deallocate,
            verify, write_uncorrectable, hint_lifetime, writability, used_blocks, link, attribute, set_attribute, zones);
    };
    ($this:ident => $arms:tt; $($method:ident),+ $(,)?) => {
        $($crate::delegate_namespace!(@$method $this $arms);)+
    };

    (@info $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        fn info(&self) -> $crate::NamespaceInfo {
            let $this = self;
            match $this { $($pattern => $target.info()),+ }
        }
    };
    (@read $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        async fn read(&self, lba: $crate::Lba, buf: ::engine::Buf) -> (Result<(), $crate::Error>, ::engine::Buf) {
            let $this = self;
            match $this { $($pattern => $target.read(lba, buf).await),+ }
        }
    };
    (@write $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        async fn write(
            &self,
            lba: $crate::Lba,
            data: ::engine::View,
            durability: $crate::Durability,
        ) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.write(lba, data, durability).await),+ }
        }
    };
    (@flush $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        async fn flush(&self) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.flush().await),+ }
        }
    };
    (@compare $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        async fn compare(&self, lba: $crate::Lba, expected: ::engine::View) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.compare(lba, expected).await),+ }
        }
    };
    (@compare_and_write $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        async fn compare_and_write(
            &self,
            lba: $crate::Lba,
            expected: ::engine::View,
            new: ::engine::View,
            durability: $crate::Durability,
        ) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.compare_and_write(lba, expected, new, durability).await),+ }
        }
    };
    (@write_zeroes $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        async fn write_zeroes(
            &self,
            lba: $crate::Lba,
            blocks: u64,
            durability: $crate::Durability,
        ) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.write_zeroes(lba, blocks, durability).await),+ }
        }
    };
    (@deallocate $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        async fn deallocate(&self, lba: $crate::Lba, blocks: u64) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.deallocate(lba, blocks).await),+ }
        }
    };
    (@verify $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        async fn verify(&self, lba: $crate::Lba, blocks: u64) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.verify(lba, blocks).await),+ }
        }
    };
    (@write_uncorrectable $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        async fn write_uncorrectable(&self, lba: $crate::Lba, blocks: u64) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.write_uncorrectable(lba, blocks).await),+ }
        }
    };
    (@hint_lifetime $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        async fn hint_lifetime(&self, lifetime: ::engine::file::Lifetime) -> bool {
            let $this = self;
            match $this { $($pattern => $target.hint_lifetime(lifetime).await),+ }
        }
    };
    (@writability $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        fn writability(&self) -> $crate::Writability {
            let $this = self;
            match $this { $($pattern => $target.writability()),+ }
        }
    };
    (@used_blocks $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        fn used_blocks(&self) -> u64 {
            let $this = self;
            match $this { $($pattern => $target.used_blocks()),+ }
        }
    };
    (@link $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        fn link(&self) -> $crate::Link {
            let $this = self;
            match $this { $($pattern => $target.link()),+ }
        }
    };
    (@attribute $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        fn attribute(&self, key: &'static str) -> Result<Option<Vec<u8>>, $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.attribute(key)),+ }
        }
    };
    (@set_attribute $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        async fn set_attribute(&self, key: &'static str, value: &[u8]) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.set_attribute(key, value).await),+ }
        }
    };
    // All that concerns zones: whoever hands on one of them has to hand on the others.
    (@zones $this:ident { $($pattern:pat => $target:expr),+ $(,)? }) => {
        fn zoned(&self) -> Option<$crate::ZonedInfo> {
            let $this = self;
            match $this { $($pattern => $target.zoned()),+ }
        }

        async fn zones(&self, from: $crate::Lba, max: usize) -> Result<Vec<$crate::Zone>, $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.zones(from, max).await),+ }
        }

        async fn change_zone(
            &self,
            zone: Option<$crate::Lba>,
            action: $crate::ZoneAction,
        ) -> Result<(), $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.change_zone(zone, action).await),+ }
        }

        async fn append(
            &self,
            zone: $crate::Lba,
            data: ::engine::View,
            durability: $crate::Durability,
        ) -> Result<$crate::Lba, $crate::Error> {
            let $this = self;
            match $this { $($pattern => $target.append(zone, data, durability).await),+ }
        }
    };
}

/// The methods of a [`Namespace`](crate::Namespace) for what a kind does not have, by name; it says so where it is asked.
#[macro_export]
macro_rules! namespace_without {
    ($($what:ident),+ $(,)?) => { $($crate::namespace_without!(@$what);)+ };

    (@verify) => {
        async fn verify(&self, lba: $crate::Lba, blocks: u64) -> Result<(), $crate::Error> {
            $crate::verify_by_reading(self, lba, blocks).await
        }
    };
    (@write_uncorrectable) => {
        async fn write_uncorrectable(&self, _lba: $crate::Lba, _blocks: u64) -> Result<(), $crate::Error> {
            Err($crate::Error::Unsupported("Write Uncorrectable"))
        }
    };
    (@hint_lifetime) => {
        async fn hint_lifetime(&self, _lifetime: ::engine::file::Lifetime) -> bool {
            false
        }
    };
    // Its medium can't fail for writes alone; or it is remote, and one that has failed tells each write its error.
    (@writability) => {
        fn writability(&self) -> $crate::Writability {
            $crate::Writability::Writable
        }
    };
    // Its medium is not thin.
    (@used_blocks) => {
        fn used_blocks(&self) -> u64 {
            $crate::Namespace::info(self).blocks
        }
    };
    // It is in this machine.
    (@link) => {
        fn link(&self) -> $crate::Link {
            $crate::Link::LASTING
        }
    };
    (@attributes) => {
        fn attribute(&self, _key: &'static str) -> Result<Option<Vec<u8>>, $crate::Error> {
            Ok(None)
        }

        async fn set_attribute(&self, _key: &'static str, _value: &[u8]) -> Result<(), $crate::Error> {
            Err($crate::Error::Unsupported("attributes"))
        }
    };
    (@zones) => {
        fn zoned(&self) -> Option<$crate::ZonedInfo> {
            None
        }

        async fn zones(&self, _from: $crate::Lba, _max: usize) -> Result<Vec<$crate::Zone>, $crate::Error> {
            Err($crate::Error::Unsupported("zones"))
        }

        async fn change_zone(
            &self,
            _zone: Option<$crate::Lba>,
            _action: $crate::ZoneAction,
        ) -> Result<(), $crate::Error> {
            Err($crate::Error::Unsupported("zones"))
        }

        async fn append(
            &self,
            _zone: $crate::Lba,
            _data: ::engine::View,
            _durability: $crate::Durability,
        ) -> Result<$crate::Lba, $crate::Error> {
            Err($crate::Error::Unsupported("zones"))
        }
    };
}
