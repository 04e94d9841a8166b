package sluice;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.TreeMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.s3a.Constants;
import org.apache.hadoop.fs.s3a.Listing;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.fs.s3a.S3AUtils;
import org.apache.hadoop.fs.s3a.S3ListRequest;
import software.amazon.awssdk.services.s3.model.ListObjectsV2Request;

/**
 * Delta's log store for S3, with commits that fail by themselves if another process has made their version.
 *
 * It lists a log from a version on instead of as a whole. Delta's option for that, `delta.enableFastS3AListFrom`,
 * calls a method that Hadoop 3.5 has changed. docs/decisions/committers-on-s3.md says why this class exists.
 */
public class S3LogStore extends S3SingleDriverLogStore {
    private static final int DIGITS = 20;

    public S3LogStore(Configuration configuration) {
        super(configuration);
    }

    /**
     * Writes a commit. The store decides whether it is the first one of its version.
     *
     * Raises FileAlreadyExistsException if it is not. Then Delta checks for conflicts, and tries the next version.
     */
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        FileSystem store = path.getFileSystem(configuration);
        if (overwrite.booleanValue() || !(store instanceof S3AFileSystem) || !StoreObject.canBeCreated(store)) {
            super.write(path, actions, overwrite, configuration);
            return;
        }
        ByteArrayOutputStream commit = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            commit.write(((String) actions.next()).getBytes(StandardCharsets.UTF_8));
            commit.write('\n');
        }
        try {
            // Each commit holds the id of its transaction, so equal content is this commit, whose answer was lost.
            StoreObject.write(store, path, commit.toByteArray(), false);
        } catch (RemoteFileChangedException error) {
            throw new FileAlreadyExistsException(path.toString());
        }
    }

    public Iterator<FileStatus> listFrom(Path path, Configuration configuration) throws IOException {
        FileSystem fileSystem = path.getFileSystem(configuration);
        String name = path.getName();
        if (!(fileSystem instanceof S3AFileSystem) || !name.matches("\\d{20}.*")) {
            return super.listFrom(path, configuration);
        }
        S3AFileSystem store = (S3AFileSystem) fileSystem;
        Path log = store.makeQualified(path).getParent();
        TreeMap<String, FileStatus> found = new TreeMap<String, FileStatus>();
        // The version before is there in any log that is read further, which tells this log from none.
        long before = Math.max(0L, Long.parseLong(name.substring(0, DIGITS)) - 1L);
        boolean isEmpty = true;
        RemoteIterator entries = list(store, log, String.format("%020d", new Object[] {Long.valueOf(before)}));
        while (entries.hasNext()) {
            FileStatus entry = (FileStatus) entries.next();
            isEmpty = false;
            if (entry.getPath().getName().compareTo(name) >= 0) {
                found.put(entry.getPath().getName(), entry);
            }
        }
        if (isEmpty && !store.exists(log)) {
            throw new FileNotFoundException("No such file or directory: " + log);
        }
        return found.values().iterator();
    }

    /** Lists a directory behind this name, with a request for each thousand files. */
    private static RemoteIterator list(S3AFileSystem store, Path directory, String name) throws IOException {
        String prefix = store.pathToKey(directory) + "/";
        int pageSize = S3AUtils.intOption(
            store.getConf(), Constants.MAX_PAGING_KEYS, Constants.DEFAULT_MAX_PAGING_KEYS, 1);
        ListObjectsV2Request request = (ListObjectsV2Request) ListObjectsV2Request.builder()
            .bucket(store.getBucket())
            .prefix(prefix)
            .delimiter("/")
            .maxKeys(Integer.valueOf(pageSize))
            .startAfter(prefix + name)
            .build();
        return store.getListing().createFileStatusListingIterator(
            directory,
            S3ListRequest.v2(request),
            S3AUtils.ACCEPT_ALL,
            new Listing.AcceptAllButSelfAndS3nDirs(directory),
            store.getActiveAuditSpan());
    }
}
