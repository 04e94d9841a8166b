package sluice;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.Arrays;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.Constants;

/** An object of a store, which is written by one PUT: as a whole, or not at all. */
final class StoreObject {
    private StoreObject() {
    }

    /** Whether this store is asked to refuse a PUT that would replace an object. */
    static boolean canBeCreated(FileSystem fileSystem) {
        return fileSystem.getConf().getBoolean(Constants.FS_S3A_CONDITIONAL_CREATE_ENABLED, true);
    }

    /**
     * Writes the object. Without `mayOverwrite` the PUT carries `If-None-Match: *`.
     *
     * Raises RemoteFileChangedException if there is one with other content, which then stays.
     */
    static void write(FileSystem fileSystem, Path path, byte[] content, boolean mayOverwrite) throws IOException {
        try {
            FSDataOutputStreamBuilder builder = fileSystem.createFile(path).create().overwrite(mayOverwrite);
            if (!mayOverwrite && canBeCreated(fileSystem)) {
                // Without this, S3A sends the header only with the performance flag `create`.
                builder.must(Options.CreateFileOptionKeys.FS_OPTION_CREATE_CONDITIONAL_OVERWRITE, true);
            }
            FSDataOutputStream stream = (FSDataOutputStream) builder.build();
            stream.write(content);
            stream.close();
        } catch (IOException error) {
            // A repeated PUT whose first answer was lost fails, too.
            if (!holds(fileSystem, path, content)) {
                throw error;
            }
        }
    }

    private static boolean holds(FileSystem fileSystem, Path path, byte[] content) throws IOException {
        try {
            FSDataInputStream stream = fileSystem.open(path);
            try {
                return Arrays.equals(content, stream.readAllBytes());
            } finally {
                stream.close();
            }
        } catch (FileNotFoundException error) {
            return false;
        }
    }
}
