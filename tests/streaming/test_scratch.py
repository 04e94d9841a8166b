"""A Spark session names its process in its scratch folder, so the folders of killed processes are recognizable."""

from pathlib import Path

from include.control.leases import process
from include.control.leases.process import OWNER, Process
from include.settings import settings


def test_a_session_keeps_its_scratch_in_a_folder_that_names_its_process(spark):
    local_directories = (
        spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager().localDirs()
    )
    folders = {Path(str(directory)).parent for directory in local_directories}
    assert len(folders) == 1
    (folder,) = folders
    assert folder.parent == settings().temporary
    assert Process.from_json((folder / OWNER).read_text()).is_alive
    assert not process.is_leftover(folder)
    assert folder in Path(spark.sparkContext._temp_dir).parents
