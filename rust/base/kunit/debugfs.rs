// SPDX-License-Identifier: GPL-2.0

//! The suite of debugfs.

#[kernel::macros::kunit_tests(farblk_debugfs)]
mod tests {
    use crate::{
        base::debugfs::{
            Dir,
            File,
            Writer, //
        },
        kunit::{
            check,
            shell, //
        },
    };
    use kernel::{
        fmt,
        prelude::*,
        sync::Arc, //
    };

    /// Shows a word.
    struct Word(&'static str);

    impl Writer for Word {
        fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    /// Shows a word that others use, too.
    struct Shared(Arc<Word>);

    impl Writer for Shared {
        fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.write(f)
        }
    }

    const DIR: &CStr = c"farblk_kunit";

    fn word(dir: &Dir, data: Arc<Word>) -> Result<Pin<KBox<File<Shared>>>> {
        KBox::pin_init(dir.read_only_file(c"word", Shared(data)), GFP_KERNEL)
    }

    #[test]
    fn file_shows_its_data() -> Result {
        let dir = Dir::new(DIR).subdir(c"sub");
        let _file = word(&dir, Arc::new(Word("seventeen"), GFP_KERNEL)?)?;
        check!(shell(c"[ $(cat /sys/kernel/debug/farblk_kunit/sub/word) = seventeen ]").is_ok());
        check!(shell(c"[ $(stat -c %a /sys/kernel/debug/farblk_kunit/sub/word) = 400 ]").is_ok());
        Ok(())
    }

    #[test]
    fn entries_go_with_the_last_value() -> Result {
        let dir = Dir::new(DIR);
        let data = Arc::new(Word(""), GFP_KERNEL)?;
        let file = word(&dir, data.clone())?;
        drop(dir);
        // The file keeps its directory.
        check!(shell(c"[ -f /sys/kernel/debug/farblk_kunit/word ]").is_ok());
        drop(file);
        check!(shell(c"[ ! -e /sys/kernel/debug/farblk_kunit ]").is_ok());
        // There is no other reference to the data.
        check!(Arc::into_unique_or_drop(data).is_some());
        Ok(())
    }

    /// Who has a file open that is removed cannot read it any more, and can close it.
    #[test]
    fn open_file_can_be_removed() -> Result {
        let data = Arc::new(Word("word"), GFP_KERNEL)?;
        let file = word(&Dir::new(DIR), data.clone())?;
        shell(
            c"exec 5</sys/kernel/debug/farblk_kunit/word
            rm -f /run/farblk_kunit_word
            (
                while [ -e /sys/kernel/debug/farblk_kunit/word ]; do sleep 0.1; done
                cat <&5 >/dev/null 2>&1 && result=read || result=refused
                exec 5<&-
                echo $result >/run/farblk_kunit_word
            ) &",
        )?;
        drop(file);
        check!(Arc::into_unique_or_drop(data).is_some());
        check!(shell(
            c"for _ in $(seq 100); do
                [ -s /run/farblk_kunit_word ] && break
                sleep 0.1
            done
            result=$(cat /run/farblk_kunit_word)
            rm -f /run/farblk_kunit_word
            [ $result = refused ]"
        )
        .is_ok());
        Ok(())
    }
}
