package sluice;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.Collections;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;
import org.apache.spark.unsafe.Platform;

/**
 * Writes each file of a checkpoint in a store with one PUT, where Spark's own file manager writes, copies and deletes.
 *
 * Files of other file systems are written as Spark does. docs/concepts/object-store-requests.md says why this class
 * exists.
 */
public class S3CheckpointFileManager extends FileSystemBasedCheckpointFileManager {
    public S3CheckpointFileManager(Path path, Configuration configuration) {
        super(path, configuration);
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean mayOverwrite) {
        return isStore(path) ? new WholeObject(fs(), path, mayOverwrite) : super.createAtomic(path, mayOverwrite);
    }

    /** Spark asks before it writes a batch's file. S3A would also list, because a directory might have that name. */
    public boolean exists(Path path) {
        if (!isOfBatch(path)) {
            return super.exists(path);
        }
        try {
            return fs().isFile(path);
        } catch (IOException error) {
            // Scala declares no exceptions, and its callers expect this one.
            Platform.throwException(error);
            return false;
        }
    }

    /** Spark deletes the oldest files after each batch. S3A would also look for the file, and list what is left. */
    public void delete(Path path) {
        if (!isOfBatch(path)) {
            super.delete(path);
            return;
        }
        try {
            BulkDelete deletion = fs().createBulkDelete(path.getParent());
            try {
                List failed = deletion.bulkDelete(Collections.singletonList(path));
                if (!failed.isEmpty()) {
                    throw new IOException("not deleted: " + failed);
                }
            } finally {
                deletion.close();
            }
        } catch (IOException error) {
            Platform.throwException(error);
        }
    }

    private boolean isOfBatch(Path path) {
        String directory = path.getParent() == null ? "" : path.getParent().getName();
        return isStore(path) && (directory.equals("offsets") || directory.equals("commits"));
    }

    private boolean isStore(Path path) {
        return "s3a".equals(fs().makeQualified(path).toUri().getScheme());
    }

    /** Nothing is sent before `close`, so a cancelled or killed write leaves nothing. */
    private static class WholeObject extends CheckpointFileManager.CancellableFSDataOutputStream {
        private final FileSystem fileSystem;
        private final Path path;
        private final boolean mayOverwrite;
        private boolean isDone = false;

        WholeObject(FileSystem fileSystem, Path path, boolean mayOverwrite) {
            super(new ByteArrayOutputStream());
            this.fileSystem = fileSystem;
            this.path = path;
            this.mayOverwrite = mayOverwrite;
        }

        public void cancel() {
            isDone = true;
        }

        public void close() throws IOException {
            if (isDone) {
                return;
            }
            isDone = true;
            byte[] content = ((ByteArrayOutputStream) underlyingStream()).toByteArray();
            StoreObject.write(fileSystem, path, content, mayOverwrite);
        }
    }
}
